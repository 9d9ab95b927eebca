// Unmounting, however often something was mounted there and whoever uses it.
import { readFileSync } from "node:fs";
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

/** Where something is mounted, at a path or below; each before what is mounted in it. */
export function mountPoints(path: string): string[] {
  const lines = readFileSync("/proc/self/mountinfo", "utf8").trim().split("\n");
  const points = lines.map((line) => unescapePath(line.split(" ")[4]!));
  return points.filter((point) => point === path || point.startsWith(`${path}/`));
}

/** mountinfo writes space, tab, newline and backslash as octal. */
export function unescapePath(path: string): string {
  return path.replace(/\\([0-7]{3})/g, (_, digits: string) =>
    String.fromCharCode(Number.parseInt(digits, 8)),
  );
}
