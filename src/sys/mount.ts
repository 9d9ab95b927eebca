// Mounts.
import { closeSync } from "node:fs";
import { check, O_CLOEXEC, z } from "./libc.ts";

export const MS_RDONLY = 1;
export const MS_NOSUID = 2;
export const MS_NODEV = 4;
export const MS_NOEXEC = 8;
export const MS_REMOUNT = 32;
export const MS_BIND = 4096;
export const MS_REC = 16384;
export const MS_UNBINDABLE = 1 << 17;
export const MS_PRIVATE = 1 << 18;
export const MS_SLAVE = 1 << 19;
export const MS_SHARED = 1 << 20;
export const MNT_DETACH = 2;
export const UMOUNT_NOFOLLOW = 8;

/** mount(2). data is the file system's own option string. */
export function mount(
  source: string,
  target: string,
  type: string,
  flags: number,
  data = "",
): void {
  check("mount", target, z(source), z(target), z(type), flags, data === "" ? null : z(data));
}

/** umount2(2), never through a symlink. */
export function unmount(target: string, flags = 0): void {
  check("umount2", target, z(target), flags | UMOUNT_NOFOLLOW);
}

/** Bind-mounts an open descriptor's file at path, where mount(2) through /proc would be refused. */
export function mountDescriptor(fd: number, path: string): void {
  const AT_EMPTY_PATH = 0x1000;
  const OPEN_TREE_CLONE = 1;
  const MOVE_MOUNT_F_EMPTY_PATH = 4;
  const AT_FDCWD = -100;
  const flags = OPEN_TREE_CLONE | AT_EMPTY_PATH | O_CLOEXEC;
  const tree = check("open_tree", `descriptor ${fd}`, fd, z(""), flags);
  try {
    check("move_mount", path, tree, z(""), AT_FDCWD, z(path), MOVE_MOUNT_F_EMPTY_PATH);
  } finally {
    closeSync(tree);
  }
}
