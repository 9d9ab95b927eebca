// Knows what the guests of well-known shims lack. Of other shims nothing is refused: their runtime decides.
import { existsSync } from "node:fs";
import { readSettings } from "../base/settings_file.ts";
import type { ShimSettings } from "../node/oci_runtime.ts";

export type GuestTraits = {
  /** The guest's containers can use the node's network. */
  hostNetwork: boolean;
  /** The guest has a kernel of its own: its runtime joins no namespace of this node but the network's. */
  hasKernel: boolean;
  /** SELinux label of the guest's process: none, that of virtual machines, or that of containers. */
  selinux: "none" | "kvm" | "container";
};

/** Where gVisor's shim looks for its settings by itself. */
const runscConfigs = ["/run/containerd/runsc/config.toml", "/etc/containerd/runsc/config.toml"];

export function isGvisor(type: string): boolean {
  return type.includes("runsc");
}

export function guestTraits({ type, configPath }: ShimSettings): GuestTraits {
  if (isGvisor(type)) {
    return { hostNetwork: usesHostNetwork(configPath), hasKernel: true, selinux: "none" };
  }
  const isVm = /kata|firecracker/.test(type);
  return isVm
    ? { hostNetwork: false, hasKernel: true, selinux: "kvm" }
    : { hostNetwork: true, hasKernel: false, selinux: "container" };
}

/** runsc's own network stack serves pods with a network namespace of their own only. */
function usesHostNetwork(configPath: string): boolean {
  const file = [configPath, ...runscConfigs].find((path) => path !== "" && existsSync(path));
  if (file === undefined) return false;
  return /^[ \t]*network[ \t]*=[ \t]*["']host["']/m.test(readSettings(file));
}
