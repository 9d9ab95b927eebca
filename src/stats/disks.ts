// Disks by the names that people know them by.
import { readlinkSync, statSync } from "node:fs";
import { statfs } from "node:fs/promises";
import { basename } from "node:path";
import { readMountTable } from "../sys/mount_table.ts";
import { deviceNumbers } from "../sys/path.ts";

/** A file system's size; inodes 0 where it makes them as it needs them. */
export type DiskSpace = { device: string; bytes: bigint; inodes: bigint; inodesFree: bigint };

/** Of the file system that a folder lies on. */
export async function diskSpace(folder: string): Promise<DiskSpace> {
  const { bsize, blocks, files, ffree } = await statfs(folder, { bigint: true });
  const { dev } = statSync(folder, { bigint: true });
  const device = mountSource(dev);
  return { device, bytes: bsize * blocks, inodes: files, inodesFree: ffree };
}

/** What is mounted there, such as /dev/sda1; else the numbers of the device. */
function mountSource(dev: bigint): string {
  const { major, minor } = deviceNumbers(dev);
  const numbers = `${major}:${minor}`;
  return readMountTable().find(({ device }) => device === numbers)?.source || numbers;
}

/** A disk by its numbers, such as /dev/sda. */
export function diskName(major: number, minor: number): string {
  try {
    return `/dev/${basename(readlinkSync(`/sys/dev/block/${major}:${minor}`))}`;
  } catch {
    return `${major}:${minor}`;
  }
}
