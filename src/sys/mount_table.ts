// Reads the mount table, /proc/self/mountinfo (proc(5)), without access to any file system: one that does not
// answer blocks nobody. Symbolic links are not resolved.
import { constants, readFileSync } from "node:fs";
import { Descriptor, hasNews } from "./descriptor.ts";

export type MountEntry = {
  /** Device numbers, "major:minor". */
  device: string;
  point: string;
  /** The optional fields: shared:N, master:N, propagate_from:N, unbindable. */
  tags: string[];
  type: string;
  /** A device such as /dev/sda1, or the file system's own text. */
  source: string;
  /** The superblock's options. */
  options: string;
};

/** Returns the mounts in the order of mounting: each before those in it or over it. */
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

/**
 * This process's mount table, read again only after a change: the table grows with each container, and is needed for
 * each container.
 */
export class MountTable {
  readonly #read: typeof readMountTable;
  /** Opened before the first reading: poll(2) on it tells of each change since the last poll (proc(5)). */
  #file: Descriptor | undefined;
  #entries: MountEntry[] = [];

  constructor(read = readMountTable) {
    this.#read = read;
  }

  get entries(): readonly MountEntry[] {
    const isFirst = this.#file === undefined;
    this.#file ??= Descriptor.open("/proc/self/mountinfo", constants.O_RDONLY);
    if (hasNews(this.#file) || isFirst) this.#entries = this.#read();
    return this.#entries;
  }
}

/** Returns a path's mount: the longest mount point, of equal ones the last. */
export function mountOf(path: string, table: readonly MountEntry[]): MountEntry | undefined {
  let best: MountEntry | undefined;
  for (const entry of table) {
    if (holds(entry.point, path) && entry.point.length >= (best?.point.length ?? 0)) best = entry;
  }
  return best;
}

/** Returns the mount points at and below a path, each before those in it. */
export function mountPoints(path: string): string[] {
  const points = readMountTable().map(({ point }) => point);
  return points.filter((point) => holds(path, point));
}

function holds(folder: string, path: string): boolean {
  if (folder === "/") return true;
  return path.startsWith(folder) && (path.length === folder.length || path[folder.length] === "/");
}

/** mountinfo writes space, tab, newline and backslash as octal. */
function unescapePath(path: string): string {
  if (!path.includes("\\")) return path;
  return path.replace(/\\([0-7]{3})/g, (_, digits: string) =>
    String.fromCharCode(Number.parseInt(digits, 8)),
  );
}
