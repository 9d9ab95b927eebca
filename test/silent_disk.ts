// A file system that answers nothing, as that of a lost NFS server: FUSE whose server reads no request.
import { closeSync, constants, mkdirSync, openSync } from "node:fs";
import { MNT_DETACH, mount, unmount } from "../src/sys/mount.ts";
import { mountPoints } from "../src/sys/mount_table.ts";

/**
 * Mounts one at a path; who touches what is below it waits until it is disposed of. server: where the
 * kernel's requests can be read, without waiting. Needs root.
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
