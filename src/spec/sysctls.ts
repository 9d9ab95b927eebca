// Sysctls that pods get without asking, as containerd's enable_unprivileged_ports and _icmp do it.
import { runtime } from "../proto/messages.js";
import type { PodSandboxConfig } from "../proto/types.ts";

const { NamespaceMode } = runtime.v1;

/**
 * The sysctls of a pod with a network of its own: any user may listen on ports below 1024, and send
 * pings. What the pod itself asks for wins.
 */
export function podSysctls(
  config: PodSandboxConfig,
  enabled: { unprivilegedPorts: boolean; unprivilegedIcmp: boolean },
): Record<string, string> {
  const asked = config.linux?.sysctls ?? {};
  const options = config.linux?.security_context?.namespace_options;
  if (options?.network === NamespaceMode.NODE) return asked;
  const given: Record<string, string> = {};
  if (enabled.unprivilegedPorts) given["net.ipv4.ip_unprivileged_port_start"] = "0";
  // In a user namespace the kernel takes only groups that are mapped there.
  const userNamespace = options?.userns_options?.mode === NamespaceMode.POD;
  if (enabled.unprivilegedIcmp && !userNamespace) {
    given["net.ipv4.ping_group_range"] = "0 2147483647";
  }
  for (const key of Object.keys(asked)) delete given[key.replaceAll("/", ".")];
  return { ...given, ...asked };
}
