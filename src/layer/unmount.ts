// Unmounting, however often something was mounted there and whoever uses it.
import { errnoOf } from "../base/errors.ts";
import { MNT_DETACH, unmount } from "../sys/mount.ts";

/** Mounts stacked by mistake; far more than there ever are. */
const unmountsMax = 16;

/** Takes away all that is mounted at a path; nothing, or no such path, is no error. */
export function unmountAll(path: string): void {
  for (let left = unmountsMax; left > 0 && tryUnmount(path); left--);
}

/** False when nothing is mounted there. */
function tryUnmount(path: string): boolean {
  try {
    unmount(path);
  } catch (error) {
    const code = errnoOf(error);
    if (code === "EINVAL" || code === "ENOENT") return false;
    if (code !== "EBUSY") throw error;
    unmount(path, MNT_DETACH);
  }
  return true;
}
