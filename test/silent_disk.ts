// A file system that answers nothing, as that of a lost NFS server: FUSE whose server reads no request.
import { closeSync, mkdirSync, openSync } from "node:fs";
import { MNT_DETACH, mount, unmount } from "../src/sys/mount.ts";
import { mountPoints } from "../src/sys/mount_table.ts";

/** Mounts one at a path; who touches what is below it waits until it is disposed of. Needs root. */
export function silentDisk(path: string): Disposable {
  mkdirSync(path, { recursive: true });
  const fd = openSync("/dev/fuse", "r+");
  mount("silent", path, "fuse", 0, `fd=${fd},rootmode=40000,user_id=0,group_id=0`);
  return {
    [Symbol.dispose]() {
      closeSync(fd); // all who wait get ENOTCONN
      if (mountPoints(path).length > 0) unmount(path, MNT_DETACH);
    },
  };
}
