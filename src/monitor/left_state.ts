// Removes what a killed runc leaves in a container's state folder, and `runc delete` after it: runc mounts its own program
// over an empty file for a moment, and an exec that is cancelled may end in just that one.
import { readdirSync, rmdirSync, unlinkSync } from "node:fs";
import { join } from "node:path";
import { errnoOf } from "../base/errors.ts";
import { unmount } from "../sys/mount.ts";

const MNT_DETACH = 2;
const ofRunc = /^runc\.\w{6}$/;

/** folder: of a container that the runtime has deleted; usually it is gone. @throws when something else is in it. */
export function removeLeftState(folder: string): void {
  try {
    for (const name of readdirSync(folder)) if (ofRunc.test(name)) removeFile(join(folder, name));
    rmdirSync(folder);
  } catch (error) {
    if (errnoOf(error) !== "ENOENT") throw error;
  }
}

function removeFile(path: string): void {
  try {
    unmount(path, MNT_DETACH);
  } catch (error) {
    if (errnoOf(error) !== "EINVAL") throw error; // EINVAL: nothing is mounted there
  }
  unlinkSync(path);
}
