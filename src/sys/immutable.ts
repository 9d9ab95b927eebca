// Clears the attributes of chattr(1) +i and +a, which keep even root from removing a file.
import { constants, fstatSync } from "node:fs";
import { Descriptor } from "./descriptor.ts";
import { check } from "./libc.ts";

// The kernel reads and writes 4 bytes, whatever the size in the request.
const FS_IOC_GETFLAGS = 0x80086601;
const FS_IOC_SETFLAGS = 0x40086602;
const FS_IMMUTABLE_FL = 0x10;
const FS_APPEND_FL = 0x20;
const O_PATH = 0o10000000;
const longBytes = 8;

/**
 * Clears the attributes of a regular file or a folder; follows no symlink, and opens no other kind of file. Returns
 * false if the file has neither attribute, or if the file system or a missing CAP_LINUX_IMMUTABLE refuses.
 */
export function clearImmutable(path: string | Buffer): boolean {
  const { O_NOFOLLOW, O_NONBLOCK, O_RDONLY } = constants;
  try {
    using found = Descriptor.open(path, O_PATH | O_NOFOLLOW);
    const type = fstatSync(found.fd);
    if (!type.isFile() && !type.isDirectory()) return false;
    using file = Descriptor.open(`/proc/self/fd/${found.fd}`, O_RDONLY | O_NONBLOCK);
    const flags = new Uint8Array(longBytes);
    const view = new DataView(flags.buffer);
    check("ioctl", "FS_IOC_GETFLAGS", file.fd, FS_IOC_GETFLAGS, flags);
    const old = view.getUint32(0, true);
    view.setUint32(0, (old & ~(FS_IMMUTABLE_FL | FS_APPEND_FL)) >>> 0, true);
    if (view.getUint32(0, true) === old) return false;
    check("ioctl", "FS_IOC_SETFLAGS", file.fd, FS_IOC_SETFLAGS, flags);
    return true;
  } catch {
    return false; // the caller reports why the file stays
  }
}
