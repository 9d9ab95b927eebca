// Which disk a log lies on, found out without asking the disk: its server may not answer, and all
// containers wait while the monitor's main thread does.
import { readlinkSync } from "node:fs";
import { join } from "node:path";
import { mountOf, readMountTable } from "../sys/mount_table.ts";

/** What answers for symbolic links by itself; network file systems and FUSE need somebody else. */
const local = new Set(
  "bcachefs btrfs erofs ext2 ext3 ext4 f2fs overlay ramfs rootfs squashfs tmpfs vfat xfs zfs".split(
    " ",
  ),
);
const linksMax = 40;

/**
 * The file system that an absolute path is on, or will be on when it is made, by its device's numbers.
 * Symbolic links on a disk that may not answer are not followed.
 */
export function diskOf(path: string, table = readMountTable()): string {
  let folder = "/";
  let links = 0;
  const names = path.split("/");
  while (names.length > 0) {
    const name = names.shift()!;
    const next = join(folder, name);
    const mount = mountOf(next, table);
    // What something is mounted on is no link, and lstat(2) would ask what is mounted there.
    const mayBeLink = name !== ".." && mount?.point !== next && local.has(mount?.type ?? "");
    const target = mayBeLink && links < linksMax ? linkTarget(next) : undefined;
    if (target === undefined) {
      folder = next;
      continue;
    }
    links++;
    names.unshift(...target.split("/"));
    if (target.startsWith("/")) folder = "/";
  }
  return mountOf(folder, table)?.device ?? "";
}

/** Undefined for what is no link, or is not there. */
function linkTarget(path: string): string | undefined {
  try {
    return readlinkSync(path);
  } catch {
    return undefined;
  }
}
