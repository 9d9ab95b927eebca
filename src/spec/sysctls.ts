// Adds default sysctls to pods, like containerd's enable_unprivileged_ports and enable_unprivileged_icmp.
import type { PodSandboxConfig } from "../proto/types.ts";
import { namespaceOptions } from "./namespace_options.ts";

/**
 * Returns a pod's sysctls. A pod with its own network namespace gets defaults that let any user bind ports
 * below 1024 and send pings; sysctls that it requests win.
 */
export function podSysctls(
  config: PodSandboxConfig,
  enabled: { unprivilegedPorts: boolean; unprivilegedIcmp: boolean },
): Record<string, string> {
  const requested = config.linux?.sysctls ?? {};
  const { network, user } = namespaceOptions(config);
  if (network === "node") return requested;
  const given: Record<string, string> = {};
  if (enabled.unprivilegedPorts) given["net.ipv4.ip_unprivileged_port_start"] = "0";
  // In a user namespace the kernel accepts only mapped groups.
  if (enabled.unprivilegedIcmp && user === undefined) {
    given["net.ipv4.ping_group_range"] = "0 2147483647";
  }
  for (const key of Object.keys(requested)) delete given[key.replaceAll("/", ".")];
  return { ...given, ...requested };
}
