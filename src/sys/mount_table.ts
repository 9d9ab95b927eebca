// What is mounted where: /proc/self/mountinfo (proc(5)). It is read without asking any file system, so
// that one which does not answer holds nobody up. It knows no symbolic links.
import { readFileSync } from "node:fs";

export type MountEntry = {
  /** Numbers of the device, "major:minor". */
  device: string;
  point: string;
  /** The optional fields: shared:N, master:N, propagate_from:N, unbindable. */
  tags: string[];
  type: string;
  /** A device such as /dev/sda1, or what the file system says instead. */
  source: string;
  /** The superblock's options. */
  options: string;
};

/** In the order of mounting: each before what is mounted in or over it. */
export function readMountTable(
  mountinfo: string = readFileSync("/proc/self/mountinfo", "utf8"),
): MountEntry[] {
  const entries: MountEntry[] = [];
  for (const line of mountinfo.split("\n")) {
    const [left = "", right = ""] = line.split(" - ", 2);
    const [, , device, , point, , ...tags] = left.split(" ");
    const [type, source = "", options = ""] = right.split(" ");
    if (device === undefined || point === undefined || !type) continue;
    const unescaped = { point: unescapePath(point), source: unescapePath(source) };
    entries.push({ device, ...unescaped, tags, type, options });
  }
  return entries;
}

/** The mount that a path lies on: the longest mount point, of equal ones the last. */
export function mountOf(path: string, table: readonly MountEntry[]): MountEntry | undefined {
  let best: MountEntry | undefined;
  for (const entry of table) {
    if (holds(entry.point, path) && entry.point.length >= (best?.point.length ?? 0)) best = entry;
  }
  return best;
}

/** Where something is mounted, at a path or below; each before what is mounted in it. */
export function mountPoints(path: string): string[] {
  const points = readMountTable().map(({ point }) => point);
  return points.filter((point) => holds(path, point));
}

function holds(folder: string, path: string): boolean {
  return folder === "/" || path === folder || path.startsWith(`${folder}/`);
}

/** mountinfo writes space, tab, newline and backslash as octal. */
function unescapePath(path: string): string {
  if (!path.includes("\\")) return path;
  return path.replace(/\\([0-7]{3})/g, (_, digits: string) =>
    String.fromCharCode(Number.parseInt(digits, 8)),
  );
}
