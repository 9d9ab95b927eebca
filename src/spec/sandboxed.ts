// Computes what is particular to the specs of pods that run in a guest (gVisor, Kata). Their sandbox container
// makes the guest, and its spec says what this node's namespaces say of other pods: hostname, sysctls, sharing.
import { toBigInt } from "../base/int64.ts";
import { quoted } from "../base/text.ts";
import { runtime } from "../proto/messages.js";
import type { Mount, PodSandboxConfig } from "../proto/types.ts";
import { mountName } from "./mounts.ts";
import { namespaceOptions } from "./namespace_options.ts";
import type { OciNamespace } from "./oci_types.ts";
import { unsupported } from "./refusals.ts";
import type { HostInfo, SandboxInfo } from "./spec_inputs.ts";

/** For the spec of a sandbox container that makes a guest. */
export type GuestSettings = {
  sysctls: Record<string, string>;
  /** The image of the sandbox container; "": the built-in program. */
  imageName: string;
};

/** Returns the sandbox container's namespaces: new ones, except for the network's, which CNI has set up. */
export function guestNamespaces(sandbox: SandboxInfo, host: HostInfo): OciNamespace[] {
  const { network, ipc, pid } = namespaceOptions(sandbox.config);
  const { net } = sandbox.namespaces;
  const result: OciNamespace[] = [];
  if (net !== undefined) result.push({ type: "network", path: net });
  if (ipc === "pod") result.push({ type: "ipc" });
  if (network === "pod") result.push({ type: "uts" });
  if (pid !== "node") result.push({ type: "pid" });
  if (host.cgroupVersion === 2) result.push({ type: "cgroup" });
  return [...result, { type: "mount" }];
}

/** Returns the annotations of a sandbox container, as containerd names them: Kata sizes its VM by them. */
export function guestAnnotations(
  config: PodSandboxConfig,
  { imageName }: GuestSettings,
): Record<string, string> {
  const prefix = "io.kubernetes.cri.";
  const resources = config.linux?.resources;
  const sizes = resources && {
    [`${prefix}sandbox-cpu-period`]: String(toBigInt(resources.cpu_period)),
    [`${prefix}sandbox-cpu-quota`]: String(toBigInt(resources.cpu_quota)),
    [`${prefix}sandbox-cpu-shares`]: String(toBigInt(resources.cpu_shares)),
    [`${prefix}sandbox-memory`]: String(toBigInt(resources.memory_limit_in_bytes)),
  };
  return {
    ...sizes,
    // gVisor finds the pod's volumes by it.
    [`${prefix}sandbox-log-directory`]: config.log_directory ?? "",
    ...(imageName === "" ? {} : { [`${prefix}podsandbox.image-name`]: imageName }),
  };
}

/**
 * Refuses what a pod in a guest cannot have. hostNetwork: whether its runtime can use the node's network.
 * @throws CriError FAILED_PRECONDITION with the way out.
 */
export function checkGuestPod(
  config: PodSandboxConfig,
  { handler, hostNetwork }: { handler: string; hostNetwork: boolean },
): void {
  const { network, user } = namespaceOptions(config);
  const guest = `runtime handler ${quoted(handler)} runs pods in a guest with`;
  const way = "or choose another handler (runtimeClassName)";
  if (user !== undefined) {
    throw unsupported(
      `userns_options: ${guest} users of its own: set hostUsers to true in the pod's spec, ${way}`,
    );
  }
  if (network === "node" && !hostNetwork) {
    throw unsupported(
      `namespace_options.network: ${guest} a network of its own: set hostNetwork to false in the pod's spec, ${way}`,
    );
  }
}

/** @throws CriError FAILED_PRECONDITION for a mount whose mounts inside the guest should appear on the node. */
export function checkGuestMounts(mounts: readonly Mount[]): void {
  for (const mount of mounts) {
    if (mount.propagation !== runtime.v1.MountPropagation.PROPAGATION_BIDIRECTIONAL) continue;
    throw unsupported(
      `${mountName(mount)}: what a guest mounts cannot appear on the node: do without mountPropagation Bidirectional, or choose another runtime handler`,
    );
  }
}
