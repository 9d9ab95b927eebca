// Devices that a container sees and may use.
import { CriError } from "../base/errors.ts";
import type { ContainerConfig } from "../proto/types.ts";
import type { ContainerFacts } from "./facts.ts";
import type { OciDevice, OciDeviceRule } from "./oci_types.ts";

const denyAll: OciDeviceRule = { allow: false, access: "rwm" };

/** The usual ones (null, zero, full, random, urandom, tty, ptmx) every runtime adds itself. */
export function containerDevices(
  config: ContainerConfig,
  facts: ContainerFacts,
  privileged: boolean,
): { nodes: OciDevice[]; rules: OciDeviceRule[] } {
  const nodes = new Map<string, OciDevice>();
  if (privileged) for (const device of facts.hostDevices) nodes.set(device.path, device);
  const rules: OciDeviceRule[] = [privileged ? { allow: true, access: "rwm" } : denyAll];
  for (const [index, device] of (config.devices ?? []).entries()) {
    const access = device.permissions || "rwm";
    if (!/^[rwm]{1,3}$/.test(access)) {
      throw new CriError(
        "INVALID_ARGUMENT",
        `device ${device.host_path}: permissions "${access}" are not made of r, w and m`,
      );
    }
    for (const node of facts.devices[index] ?? []) {
      nodes.set(node.path, node);
      if (node.type === "p") continue;
      rules.push({ allow: true, type: node.type, major: node.major, minor: node.minor, access });
    }
  }
  return { nodes: [...nodes.values()], rules };
}
