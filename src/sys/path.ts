// What node:fs lacks of the calls that take a path, and of those on file systems.
import { constants } from "node:fs";
import { errnoOf } from "../base/errors.ts";
import { Descriptor } from "./descriptor.ts";
import { check, libc, z } from "./libc.ts";

export function mkfifo(path: string, mode: number): void {
  check("mkfifo", path, z(path), mode);
}

/** mknod(2): mode holds the type (S_IFCHR…) too; major and minor as the kernel counts them. */
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
  // glibc before 2.33 has mknod only in what programs are linked with; this is what that calls.
  const version = 0; // _MKNOD_VER
  const bytes = new Uint8Array(new BigUint64Array([device]).buffer);
  check("__xmknod", path.toString(), version, z(path), mode, bytes);
}

/** The numbers of a device as stat(2) gives it: glibc's gnu_dev_major and gnu_dev_minor. */
export function deviceNumbers(device: bigint): { major: number; minor: number } {
  return {
    major: Number(((device >> 32n) & 0xfffff000n) | ((device >> 8n) & 0xfffn)),
    minor: Number(((device >> 12n) & 0xffffff00n) | (device & 0xffn)),
  };
}

/** chroot(2) of this whole process, with the working directory moved to its new root. */
export function chroot(path: string): void {
  check("chroot", path, z(path));
  process.chdir("/");
}

/** Leaves a chroot through a descriptor of the folder that was the root before. */
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

/** SELinux's label of a file; of a link itself. */
export function setSelinuxLabel(path: string | Buffer, label: string): void {
  lsetxattr(path, "security.selinux", new TextEncoder().encode(`${label}\0`));
}

const xattrBytesMax = 65536;

/** The attribute's value, or undefined where there is none. */
export function lgetxattr(path: string | Buffer, name: string): Uint8Array | undefined {
  const value = new Uint8Array(xattrBytesMax);
  const what = `${name} of ${path.toString()}`;
  try {
    return value.subarray(0, check("lgetxattr", what, z(path), z(name), value, value.length));
  } catch (error) {
    if (["ENODATA", "ENOTSUP"].includes(errnoOf(error) ?? "")) return undefined;
    throw error;
  }
}

/** The names of its attributes; none where the file system has no attributes. */
export function llistxattr(path: string | Buffer): string[] {
  const names = Buffer.alloc(xattrBytesMax);
  try {
    const length = check("llistxattr", path.toString(), z(path), names, names.length);
    return names.toString("utf8", 0, length).split("\0").filter(Boolean);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOTSUP") return [];
    throw error;
  }
}

/** Sets both times, to the nanosecond, of the path itself; s: since the epoch, 0 ≤ ns < 1e9. */
export function setTimes(path: string | Buffer, { s, ns }: { s: number; ns: number }): void {
  const AT_FDCWD = -100;
  const AT_SYMLINK_NOFOLLOW = 0x100;
  const times = new BigInt64Array([BigInt(s), BigInt(ns), BigInt(s), BigInt(ns)]);
  const bytes = new Uint8Array(times.buffer);
  check("utimensat", path.toString(), AT_FDCWD, z(path), bytes, AT_SYMLINK_NOFOLLOW);
}

/** Writes back the whole file system that holds the file. */
export function syncfs({ fd }: Descriptor): void {
  check("syncfs", `descriptor ${fd}`, fd);
}

/** Opens, or makes, a file that is locked as long as it stays open; undefined when somebody has it. */
export function openLocked(path: string): Descriptor | undefined {
  const { O_WRONLY, O_APPEND, O_CREAT } = constants;
  const file = Descriptor.open(path, O_WRONLY | O_APPEND | O_CREAT, 0o600);
  if (tryLock(file)) return file;
  file.close();
  return undefined;
}

function tryLock({ fd }: Descriptor): boolean {
  const LOCK_EX = 2;
  const LOCK_NB = 4;
  try {
    check("flock", `descriptor ${fd}`, fd, LOCK_EX | LOCK_NB);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EAGAIN") return false;
    throw error;
  }
}
