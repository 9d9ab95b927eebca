// Finds the disk of a path without any access to the disk: a network file system's server may not answer, and
// would block the calling thread, the main one with all containers.
import { readlinkSync } from "node:fs";
import { join } from "node:path";
import { mountOf, readMountTable, type MountEntry } from "./mount_table.ts";

/** File systems that answer from a disk or memory; network file systems and FUSE depend on a server. */
const local = new Set(
  "bcachefs btrfs erofs exfat ext2 ext3 ext4 f2fs iso9660 jffs2 ntfs3 overlay ramfs rootfs squashfs tmpfs ubifs vfat xfs zfs bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs hugetlbfs mqueue nsfs proc pstore securityfs selinuxfs sysfs tracefs".split(
    " ",
  ),
);
const linksMax = 40;

/**
 * Returns the device numbers of an absolute path's file system, also of a path that does not exist yet. Does
 * not follow symbolic links on a disk that may not answer.
 */
export function diskOf(path: string, table: readonly MountEntry[] = readMountTable()): string {
  return wayTo(path, table).mount?.device ?? "";
}

/** Returns the first mount on an absolute path that depends on a server; undefined: none does. */
export function remoteDisk(path: string, table = readMountTable()): MountEntry | undefined {
  if (table.every(({ type }) => local.has(type))) return undefined;
  return wayTo(path, table).remote;
}

/** Returns the mount of a path, and the first mount on the way to the path that may not answer. */
function wayTo(
  path: string,
  table: readonly MountEntry[],
): { mount?: MountEntry; remote?: MountEntry } {
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
    // A mount point is no link, and lstat(2) would access the mounted file system.
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

/** undefined: there is no symbolic link. */
function linkTarget(path: string): string | undefined {
  try {
    return readlinkSync(path);
  } catch {
    return undefined;
  }
}
