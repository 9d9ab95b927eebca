// Names block devices and reads the size of file systems.
import { readlinkSync, statSync } from "node:fs";
import { statfs } from "node:fs/promises";
import { basename } from "node:path";
import { readMountTable } from "../sys/mount_table.ts";
import { deviceNumbers } from "../sys/path.ts";

/** A file system's size; inodes: 0 if it allocates them dynamically. */
export type DiskSpace = { device: string; bytes: bigint; inodes: bigint; inodesFree: bigint };

/** Returns the size of the file system that contains a folder. */
export async function diskSpace(folder: string): Promise<DiskSpace> {
  const { bsize, blocks, files, ffree } = await statfs(folder, { bigint: true });
  const device = mountSource(statSync(folder, { bigint: true }).dev);
  return { device, bytes: bsize * blocks, inodes: files, inodesFree: ffree };
}

/** Returns the mounted device, such as /dev/sda1, or else its numbers. */
function mountSource(dev: bigint): string {
  const { major, minor } = deviceNumbers(dev);
  const numbers = `${major}:${minor}`;
  return readMountTable().find(({ device }) => device === numbers)?.source || numbers;
}

/** Returns the name of a disk, such as /dev/sda, or else its numbers. */
export function diskName(major: number, minor: number): string {
  try {
    return `/dev/${basename(readlinkSync(`/sys/dev/block/${major}:${minor}`))}`;
  } catch {
    return `${major}:${minor}`;
  }
}
