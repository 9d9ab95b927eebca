// Devices that a container sees and may use.
import type { ContainerConfig } from "../proto/types.ts";
import type { ContainerFacts } from "./facts.ts";
import type { OciDevice, OciDeviceRule } from "./oci_types.ts";

const denyAll: OciDeviceRule = { allow: false, access: "rwm" };

export type DeviceOptions = {
  privileged: boolean;
  /** Who the devices that are asked for shall belong to; 0: whom they belong to on the node. */
  owner?: { uid: number; gid: number };
};

/** The usual ones (null, zero, full, random, urandom, tty, ptmx) every runtime adds itself. */
export function containerDevices(
  config: ContainerConfig,
  facts: ContainerFacts,
  { privileged, owner }: DeviceOptions,
): { nodes: OciDevice[]; rules: OciDeviceRule[] } {
  const nodes = new Map<string, OciDevice>();
  if (privileged) for (const device of facts.hostDevices) nodes.set(device.path, device);
  const rules: OciDeviceRule[] = [privileged ? { allow: true, access: "rwm" } : denyAll];
  for (const [index, device] of (config.devices ?? []).entries()) {
    const access = device.permissions || "rwm";
    for (const node of facts.devices[index] ?? []) {
      const { uid, gid } = { uid: owner?.uid || node.uid, gid: owner?.gid || node.gid };
      nodes.set(node.path, { ...node, uid, gid });
      const rule = deviceRule(node, access);
      if (rule !== undefined) rules.push(rule);
    }
  }
  return { nodes: [...nodes.values()], rules };
}

/** Lets the container use it; a FIFO needs no permission. */
export function deviceRule(node: OciDevice, access: string): OciDeviceRule | undefined {
  if (node.type === "p") return undefined;
  return { allow: true, type: node.type, major: node.major, minor: node.minor, access };
}
