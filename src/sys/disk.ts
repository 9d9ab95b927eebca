// Which disk a path lies on, found out without asking the disk: its server may not answer, and a thread
// that asks it waits for as long, the main one with all containers.
import { readlinkSync } from "node:fs";
import { join } from "node:path";
import { mountOf, readMountTable, type MountEntry } from "./mount_table.ts";

/** What answers by itself, from a disk or memory; network file systems and FUSE need somebody else. */
const local = new Set(
  "bcachefs btrfs erofs exfat ext2 ext3 ext4 f2fs iso9660 jffs2 ntfs3 overlay ramfs rootfs squashfs tmpfs ubifs vfat xfs zfs bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs hugetlbfs mqueue nsfs proc pstore securityfs selinuxfs sysfs tracefs".split(
    " ",
  ),
);
const linksMax = 40;

/**
 * The file system that an absolute path is on, or will be on when it is made, by its device's numbers.
 * Symbolic links on a disk that may not answer are not followed.
 */
export function diskOf(path: string, table = readMountTable()): string {
  return wayTo(path, table).mount?.device ?? "";
}

/** The first mount on the way to an absolute path that needs somebody else to answer; undefined: none does. */
export function remoteDisk(path: string, table = readMountTable()): MountEntry | undefined {
  if (table.every(({ type }) => local.has(type))) return undefined;
  return wayTo(path, table).remote;
}

/** The mount that a path is on, and the first on the way to it that may not answer. */
function wayTo(path: string, table: MountEntry[]): { mount?: MountEntry; remote?: MountEntry } {
  let folder = "/";
  let links = 0;
  let remote: MountEntry | undefined;
  const names = path.split("/");
  while (names.length > 0) {
    const name = names.shift()!;
    const next = join(folder, name);
    const mount = mountOf(next, table);
    const isLocal = local.has(mount?.type ?? "");
    if (!isLocal) remote ??= mount;
    // What something is mounted on is no link, and lstat(2) would ask what is mounted there.
    const mayBeLink = name !== ".." && mount?.point !== next && isLocal;
    const target = mayBeLink && links < linksMax ? linkTarget(next) : undefined;
    if (target === undefined) {
      folder = next;
      continue;
    }
    links++;
    names.unshift(...target.split("/"));
    if (target.startsWith("/")) folder = "/";
  }
  return { mount: mountOf(folder, table), remote };
}

/** Undefined for what is no link, or is not there. */
function linkTarget(path: string): string | undefined {
  try {
    return readlinkSync(path);
  } catch {
    return undefined;
  }
}
