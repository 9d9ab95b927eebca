// Computes a container's device nodes and the cgroup rules that allow their use.
import type { ContainerConfig } from "../proto/types.ts";
import type { ResolvedInputs, DeviceSource } from "./spec_inputs.ts";
import type { OciDevice, OciDeviceRule, OciMount } from "./oci_types.ts";

type DeviceOptions = {
  /** The container gets all of the node's devices. */
  hasHostDevices: boolean;
  /** The container may use any device, also one that it makes. */
  allAllowed: boolean;
  /** Owner of the requested devices; 0: the owner on the host. */
  owner?: { uid: number; gid: number };
  /** The container runs in its own user namespace. */
  userns: boolean;
};

/**
 * Returns a container's device nodes, bind mounts of devices, and cgroup rules, without the default devices (null,
 * zero, full, random, urandom, tty, ptmx): every runtime adds them.
 */
export function containerDevices(
  config: ContainerConfig,
  resolved: ResolvedInputs,
  { hasHostDevices, allAllowed, owner, userns }: DeviceOptions,
): PlacedDevices & { rules: OciDeviceRule[] } {
  const found = new Map<string, DeviceSource>();
  if (hasHostDevices)
    for (const device of resolved.hostDevices) found.set(device.node.path, device);
  const rules: OciDeviceRule[] = [{ allow: allAllowed, access: "rwm" }];
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

type PlacedDevices = { nodes: OciDevice[]; mounts: OciMount[] };

/**
 * Splits devices into nodes and bind mounts. In a user namespace mknod is forbidden, so runtimes bind-mount
 * the host's node of the same path; a device from another host path needs an explicit bind mount.
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

/** Returns the cgroup rule that allows the device; undefined for a FIFO, which needs none. */
export function deviceRule(node: OciDevice, access: string): OciDeviceRule | undefined {
  if (node.type === "p") return undefined;
  return { allow: true, type: node.type, major: node.major, minor: node.minor, access };
}
