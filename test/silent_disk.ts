// Mounts a file system that never answers, like NFS with a lost server: FUSE whose server reads no request.
import { closeSync, constants, mkdirSync, openSync } from "node:fs";
import { MNT_DETACH, mount, unmount } from "../src/sys/mount.ts";
import { mountPoints } from "../src/sys/mount_table.ts";

/**
 * Mounts one at a path; any access below it blocks until it is disposed of. server: the descriptor from which
 * the kernel's requests can be read, non-blocking. Needs root.
 */
export function silentDisk(path: string): Disposable & { server: number } {
  mkdirSync(path, { recursive: true });
  const server = openSync("/dev/fuse", constants.O_RDWR | constants.O_NONBLOCK);
  mount("silent", path, "fuse", 0, `fd=${server},rootmode=40000,user_id=0,group_id=0`);
  return {
    server,
    [Symbol.dispose]() {
      closeSync(server); // all who wait get ENOTCONN
      if (mountPoints(path).length > 0) unmount(path, MNT_DETACH);
    },
  };
}
