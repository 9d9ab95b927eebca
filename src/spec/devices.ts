// Devices that a container sees and may use.
import type { ContainerConfig } from "../proto/types.ts";
import type { ResolvedInputs, DeviceSource } from "./spec_inputs.ts";
import type { OciDevice, OciDeviceRule, OciMount } from "./oci_types.ts";

const denyAll: OciDeviceRule = { allow: false, access: "rwm" };

export type DeviceOptions = {
  privileged: boolean;
  /** Who the devices that are asked for shall belong to; 0: whom they belong to on the node. */
  owner?: { uid: number; gid: number };
  /** The container has a user namespace of its own. */
  userns: boolean;
};

/** The usual ones (null, zero, full, random, urandom, tty, ptmx) every runtime adds itself. */
export function containerDevices(
  config: ContainerConfig,
  resolved: ResolvedInputs,
  { privileged, owner, userns }: DeviceOptions,
): PlacedDevices & { rules: OciDeviceRule[] } {
  const found = new Map<string, DeviceSource>();
  if (privileged) for (const device of resolved.hostDevices) found.set(device.node.path, device);
  const rules: OciDeviceRule[] = [privileged ? { allow: true, access: "rwm" } : denyAll];
  for (const [index, device] of (config.devices ?? []).entries()) {
    const access = device.permissions || "rwm";
    for (const { node, hostPath } of resolved.devices[index] ?? []) {
      const { uid, gid } = { uid: owner?.uid || node.uid, gid: owner?.gid || node.gid };
      found.set(node.path, { node: { ...node, uid, gid }, hostPath });
      const rule = deviceRule(node, access);
      if (rule !== undefined) rules.push(rule);
    }
  }
  return { ...placeDevices([...found.values()], userns), rules };
}

export type PlacedDevices = { nodes: OciDevice[]; mounts: OciMount[] };

/**
 * Nodes to be made, or in a user namespace, where nobody may make one, bound. Runtimes bind what the
 * host has at the container's path: from another path it takes a mount.
 */
export function placeDevices(devices: DeviceSource[], userns: boolean): PlacedDevices {
  const isMount = ({ node, hostPath }: DeviceSource) => userns && node.path !== hostPath;
  return {
    nodes: devices.filter((device) => !isMount(device)).map(({ node }) => node),
    mounts: devices.filter(isMount).map(({ node, hostPath }) => ({
      destination: node.path,
      type: "bind",
      source: hostPath,
      options: ["bind", "rprivate", "nosuid", "noexec"],
    })),
  };
}

/** Lets the container use it; a FIFO needs no permission. */
export function deviceRule(node: OciDevice, access: string): OciDeviceRule | undefined {
  if (node.type === "p") return undefined;
  return { allow: true, type: node.type, major: node.major, minor: node.minor, access };
}
