// Looks up host devices for containers.
import { readdir, realpath, stat } from "node:fs/promises";
import { join } from "node:path";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import type { Device } from "../proto/types.ts";
import type { DeviceSource } from "../spec/spec_inputs.ts";
import type { OciDevice } from "../spec/oci_types.ts";
import { deviceNumbers } from "../sys/path.ts";

const devicesMax = 10_000;
/** Folders in which LXC and old versions of udev keep devices for themselves; runc skips them, too. */
const internalFolders = [".lxc", ".lxd-mounts", ".udev"];

/**
 * Returns the device nodes of a CRI device: several when host_path is a directory.
 * @throws CriError INVALID_ARGUMENT when host_path has no device.
 */
export async function lookupDevice(device: Device): Promise<DeviceSource[]> {
  const hostPath = device.host_path ?? "";
  const containerPath = device.container_path || hostPath;
  const found: DeviceSource[] = [];
  try {
    const real = await realpath(hostPath);
    if ((await stat(real)).isDirectory()) {
      found.push(...(await walkDevices(real, containerPath, new Set())));
    } else {
      const node = await deviceNode(real, containerPath);
      if (node !== undefined) found.push({ node, hostPath: real });
    }
  } catch (cause) {
    throw new CriError("INVALID_ARGUMENT", `device ${hostPath}: ${messageOf(cause)}`, { cause });
  }
  if (found.length > 0) return found;
  const problem = `device ${hostPath} is neither a device nor a directory of devices`;
  throw new CriError("INVALID_ARGUMENT", problem);
}

/** Returns the devices of a privileged container, without /dev/pts and others that are its own. */
export function hostDevices(): Promise<DeviceSource[]> {
  const own = ["/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/fd", "/dev/console"];
  return walkDevices("/dev", "/dev", new Set(own));
}

async function walkDevices(
  folder: string,
  containerFolder: string,
  skip: ReadonlySet<string>,
): Promise<DeviceSource[]> {
  const result: DeviceSource[] = [];
  for (const entry of (await readdir(folder, { withFileTypes: true })).sort(byName)) {
    const path = join(folder, entry.name);
    const target = join(containerFolder, entry.name);
    if (skip.has(path) || internalFolders.includes(entry.name)) continue;
    if (entry.isDirectory()) {
      result.push(...(await walkDevices(path, target, skip)));
    } else if (entry.isCharacterDevice() || entry.isBlockDevice()) {
      const node = await deviceNode(path, target).catch(ignoreMissing);
      if (node !== undefined) result.push({ node, hostPath: path });
    }
    if (result.length > devicesMax) {
      throw new CriError("RESOURCE_EXHAUSTED", `more than ${devicesMax} devices in ${folder}`);
    }
  }
  return result;
}

/** Returns the device at path with its path in the container; undefined: not a device. */
export async function deviceNode(
  path: string,
  containerPath: string,
): Promise<OciDevice | undefined> {
  const info = await stat(path, { bigint: true });
  if (!info.isCharacterDevice() && !info.isBlockDevice()) return undefined;
  return {
    path: containerPath,
    type: info.isBlockDevice() ? "b" : "c",
    ...deviceNumbers(info.rdev),
    fileMode: Number(info.mode & 0o7777n),
    uid: Number(info.uid),
    gid: Number(info.gid),
  };
}

function byName(a: { name: string }, b: { name: string }): number {
  return a.name < b.name ? -1 : 1;
}

function ignoreMissing(error: unknown): undefined {
  if (errnoOf(error) !== "ENOENT") throw error;
}
