// Wraps system calls on paths and file systems that node:fs does not have.
import { constants, existsSync } from "node:fs";
import { errnoOf } from "../base/errors.ts";
import { Descriptor } from "./descriptor.ts";
import { check, libc, z } from "./libc.ts";

export function mkfifo(path: string, mode: number): void {
  check("mkfifo", path, z(path), mode);
}

/** mknod(2). mode: includes the type (S_IFCHR…). */
export function mknod(path: string | Buffer, mode: number, major: number, minor: number): void {
  const [high, low] = [BigInt(major), BigInt(minor)];
  // glibc's makedev: 32 bits of each, interleaved.
  const device =
    ((high & 0xfffff000n) << 32n) |
    ((high & 0xfffn) << 8n) |
    ((low & 0xffffff00n) << 12n) |
    (low & 0xffn);
  if (libc().call.mknod !== undefined) {
    check("mknod", path.toString(), z(path), mode, device);
    return;
  }
  // glibc before 2.33 has mknod only in its static part, which calls this.
  const version = 0; // _MKNOD_VER
  const bytes = new Uint8Array(new BigUint64Array([device]).buffer);
  check("__xmknod", path.toString(), version, z(path), mode, bytes);
}

/** Splits stat(2)'s device number, like glibc's gnu_dev_major and gnu_dev_minor. */
export function deviceNumbers(device: bigint): { major: number; minor: number } {
  return {
    major: Number(((device >> 32n) & 0xfffff000n) | ((device >> 8n) & 0xfffn)),
    minor: Number(((device >> 12n) & 0xffffff00n) | (device & 0xffn)),
  };
}

/** Changes the root of this whole process (chroot(2)), and its working directory to the new root. */
export function chroot(path: string): void {
  check("chroot", path, z(path));
  process.chdir("/");
}

/** Leaves a chroot through a descriptor of the earlier root. */
export function leaveChroot({ fd: root }: Descriptor): void {
  check("fchdir", `descriptor ${root}`, root);
  check("chroot", ".", z("."));
  process.chdir("/");
}

export function lsetxattr(path: string | Buffer, name: string, value: Uint8Array): void {
  // bun:ffi takes no pointer of an empty array.
  const bytes = value.length === 0 ? new Uint8Array(1) : value;
  const what = `${name} on ${path.toString()}`;
  check("lsetxattr", what, z(path), z(name), bytes, value.length, 0);
}

export function lremovexattr(path: string | Buffer, name: string): void {
  check("lremovexattr", `${name} of ${path.toString()}`, z(path), z(name));
}

/** Sets a file's SELinux label; does not follow a link. */
export function setSelinuxLabel(path: string | Buffer, label: string): void {
  lsetxattr(path, "security.selinux", new TextEncoder().encode(`${label}\0`));
}

/** XATTR_SIZE_MAX and XATTR_LIST_MAX. Shared by all calls: a new one for each would be zeroed each time. */
const xattrs = new Uint8Array(65536);

/** Reads an attribute; undefined where there is none. */
export function lgetxattr(path: string | Buffer, name: string): Uint8Array | undefined {
  const what = `${name} of ${path.toString()}`;
  try {
    return xattrs.slice(0, check("lgetxattr", what, z(path), z(name), xattrs, xattrs.length));
  } catch (error) {
    if (["ENODATA", "ENOTSUP"].includes(errnoOf(error) ?? "")) return undefined;
    throw error;
  }
}

/** Lists attribute names; none where the file system has no attributes. */
export function llistxattr(path: string | Buffer): string[] {
  try {
    const length = check("llistxattr", path.toString(), z(path), xattrs, xattrs.length);
    return Buffer.from(xattrs.buffer, 0, length).toString("utf8").split("\0").filter(Boolean);
  } catch (error) {
    if (errnoOf(error) === "ENOTSUP") return [];
    throw error;
  }
}

/** Sets both times, to the nanosecond, without following a link; s: since the epoch, 0 ≤ ns < 1e9. */
export function setTimes(path: string | Buffer, { s, ns }: { s: number; ns: number }): void {
  const AT_FDCWD = -100;
  const AT_SYMLINK_NOFOLLOW = 0x100;
  const times = new BigInt64Array([BigInt(s), BigInt(ns), BigInt(s), BigInt(ns)]);
  const bytes = new Uint8Array(times.buffer);
  check("utimensat", path.toString(), AT_FDCWD, z(path), bytes, AT_SYMLINK_NOFOLLOW);
}

/** Flushes the whole file system of a file. */
export function syncfs({ fd }: Descriptor): void {
  check("syncfs", `descriptor ${fd}`, fd);
}

/** Opens or creates a file and locks it while it is open; undefined when another process has the lock. */
export function openLocked(path: string): Descriptor | undefined {
  const { O_RDONLY, O_WRONLY, O_APPEND, O_CREAT } = constants;
  try {
    return locked(Descriptor.open(path, O_WRONLY | O_APPEND | O_CREAT, 0o600), path);
  } catch (error) {
    // On a disk that has become read-only, an earlier lock file can be locked all the same.
    if (errnoOf(error) !== "EROFS" || !existsSync(path)) throw error;
    return locked(Descriptor.open(path, O_RDONLY), path);
  }
}

/** As openLocked(), for a folder. */
export function lockedFolder(path: string): Descriptor | undefined {
  return locked(Descriptor.openFolder(path), path);
}

function locked(file: Descriptor, path: string): Descriptor | undefined {
  const LOCK_EX = 2;
  const LOCK_NB = 4;
  try {
    check("flock", path, file.fd, LOCK_EX | LOCK_NB);
    return file;
  } catch (error) {
    file.close();
    if (errnoOf(error) === "EAGAIN") return undefined;
    throw error;
  }
}
