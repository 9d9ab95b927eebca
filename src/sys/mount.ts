// Mounts and unmounts file systems.
import { readSync } from "node:fs";
import { Descriptor } from "./descriptor.ts";
import { check, O_CLOEXEC, z } from "./libc.ts";

export const MS_RDONLY = 1;
export const MS_NOSUID = 2;
export const MS_NODEV = 4;
export const MS_NOEXEC = 8;
export const MS_REMOUNT = 32;
export const MS_BIND = 4096;
export const MS_REC = 16384;
const MS_PRIVATE = 1 << 18;
export const MS_SHARED = 1 << 20;
export const MNT_DETACH = 2;
const UMOUNT_NOFOLLOW = 8;

/** mount(2). data: the file system's option string. */
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

/** A mount option; one without a value is a flag. */
export type MountOption = readonly [key: string, value?: string];

/**
 * Mounts by fsopen(2), which takes options of any number and length; mount(2) limits all of them to a page.
 * @throws ENOSYS when the kernel or the libc lacks it; other errors include the file system's messages.
 */
export function mountByOptions(
  type: string,
  target: string,
  { options, readonly }: { options: readonly MountOption[]; readonly: boolean },
): void {
  const FSOPEN_CLOEXEC = 1;
  const FSMOUNT_CLOEXEC = 1;
  const MOUNT_ATTR_RDONLY = 1;
  const [SET_FLAG, SET_STRING, CREATE] = [0, 1, 6];
  using context = new Descriptor(check("fsopen", type, z(type), FSOPEN_CLOEXEC));
  try {
    const all: MountOption[] = [["source", type], ...options];
    if (readonly) all.push(["ro"]);
    for (const [key, value] of all) {
      const command = value === undefined ? SET_FLAG : SET_STRING;
      const text = value === undefined ? null : z(value);
      check("fsconfig", `${type} ${key}`, context.fd, command, z(key), text, 0);
    }
    check("fsconfig", `${type} CREATE`, context.fd, CREATE, null, null, 0);
    const attributes = readonly ? MOUNT_ATTR_RDONLY : 0;
    const mounted = check("fsmount", type, context.fd, FSMOUNT_CLOEXEC, attributes);
    using tree = new Descriptor(mounted);
    attach(tree, target);
  } catch (error) {
    const said = complaints(context);
    if (said !== "" && error instanceof Error) error.message += ` (${said})`;
    throw error;
  }
}

/** Reads the errors of a failed mount: each read(2) gives one message, preceded by "e ", "w " or "i ". */
function complaints({ fd: context }: Descriptor): string {
  const lines: string[] = [];
  const buffer = Buffer.alloc(1024);
  try {
    for (;;) {
      const length = readSync(context, buffer);
      const line = buffer.toString("utf8", 0, length).trim();
      if (line.startsWith("e ")) lines.push(line.slice(2));
    }
  } catch {
    return lines.join("; "); // ENODATA: there are no more
  }
}

const AT_FDCWD = -100;
const AT_EMPTY_PATH = 0x1000;
const OPEN_TREE_CLONE = 1;

/** Bind-mounts an open descriptor's file at path: the kernel refuses mount(2) of /proc/self/fd/N. */
export function mountDescriptor({ fd }: Descriptor, path: string): void {
  const flags = OPEN_TREE_CLONE | AT_EMPTY_PATH | O_CLOEXEC;
  using tree = new Descriptor(check("open_tree", `descriptor ${fd}`, fd, z(""), flags));
  attach(tree, path);
}

/**
 * Bind-mounts a folder at path with its ids mapped by a user namespace (mount_setattr(2)): files that root
 * owns in source belong to the namespace's root at path. userns: that namespace's descriptor.
 */
export function mountIdmapped(source: string, path: string, userns: Descriptor): void {
  const flags = OPEN_TREE_CLONE | O_CLOEXEC;
  using tree = new Descriptor(check("open_tree", source, AT_FDCWD, z(source), flags));
  const MOUNT_ATTR_IDMAP = 0x100000n;
  // struct mount_attr: attr_set, attr_clr, propagation, userns_fd
  const attr = BigUint64Array.of(MOUNT_ATTR_IDMAP, 0n, BigInt(MS_PRIVATE), BigInt(userns.fd));
  const bytes = new Uint8Array(attr.buffer);
  check("mount_setattr", source, tree.fd, z(""), AT_EMPTY_PATH, bytes, bytes.length);
  attach(tree, path);
}

function attach({ fd: tree }: Descriptor, path: string): void {
  const MOVE_MOUNT_F_EMPTY_PATH = 4;
  check("move_mount", path, tree, z(""), AT_FDCWD, z(path), MOVE_MOUNT_F_EMPTY_PATH);
}
