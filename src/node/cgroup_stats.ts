// What the kernel counts for a cgroup, the same for v1, v2 and a hybrid host (v1 whose empty cgroup2
// has the pressure figures). What is not counted on this host is not there, and never 0.
import { nowNs } from "../base/clock.ts";
import { readKernelFile } from "../sys/file.ts";
import { type CgroupPaths, processes } from "./cgroup.ts";

/** Share of the time in percent (avg…) in which work waited; total in nanoseconds. */
export type Pressure = { avg10: number; avg60: number; avg300: number; totalNs: bigint };
/** some: at least one task waited; full: all did. */
export type Pressures = { some?: Pressure; full?: Pressure };

/** In bytes, as cAdvisor tells them. */
export type MemoryUsage = {
  usage: bigint;
  /** usage without inactive file pages, which the kernel could drop at once. */
  workingSet: bigint;
  /** Anonymous memory. */
  rss: bigint;
  cache: bigint;
  mapped: bigint;
  activeFile: bigint;
  inactiveFile: bigint;
  pageFaults: bigint;
  majorPageFaults: bigint;
  /** undefined: none, also none above it. */
  limit?: bigint;
  /** undefined: this host does not count swap. */
  swap?: bigint;
  /** Of swap alone; undefined: none. */
  swapLimit?: bigint;
};

export type CgroupUsage = {
  /** When it was read, nanoseconds since the epoch. */
  atNs: bigint;
  cpuNs?: bigint;
  memory?: MemoryUsage;
  /** Also those of the cgroups below; only where it was asked for. */
  processes?: bigint;
  cpuPressure?: Pressures;
  memoryPressure?: Pressures;
  ioPressure?: Pressures;
};

/** The text of a kernel file, undefined where there is none. */
type Read = (path: string) => string | undefined;

/** undefined once the cgroup is gone. */
export function readUsage(
  paths: CgroupPaths,
  options: { processes?: boolean; read?: Read } = {},
): CgroupUsage | undefined {
  const { unified } = paths;
  const { read = readKernelFile } = options;
  const atNs = nowNs();
  const found = unified === undefined ? readV1(paths, read) : readV2(unified, read);
  if (found.cpuNs === undefined && found.memory === undefined) return undefined;
  return {
    atNs,
    ...found,
    ...readPressures(unified ?? paths["hybrid"], read),
    processes: options.processes === true ? BigInt(processes(paths).length) : undefined,
  };
}

function readV1(paths: CgroupPaths, read: Read): Omit<CgroupUsage, "atNs"> {
  const { cpuacct, memory } = paths;
  return {
    cpuNs: cpuacct === undefined ? undefined : numberIn(`${cpuacct}/cpuacct.usage`, read),
    memory: memory === undefined ? undefined : readMemoryV1(memory, read),
  };
}

/** Keys of memory.stat, where the versions differ; v1's total_ are of this cgroup and those below it. */
const keysV1 = { rss: "rss", cache: "cache", mapped: "mapped_file", prefix: "total_" };
const keysV2 = { rss: "anon", cache: "file", mapped: "file_mapped", prefix: "" };

function memoryCounts(
  usage: bigint,
  stat: (key: string) => bigint | undefined,
  { prefix, ...keys }: typeof keysV1,
): Omit<MemoryUsage, "limit" | "swap" | "swapLimit"> {
  const count = (key: string) => stat(`${prefix}${key}`) ?? 0n;
  const inactiveFile = count("inactive_file");
  return {
    usage,
    workingSet: atLeast0(usage - inactiveFile),
    rss: count(keys.rss),
    cache: count(keys.cache),
    mapped: count(keys.mapped),
    activeFile: count("active_file"),
    inactiveFile,
    pageFaults: count("pgfault"),
    majorPageFaults: count("pgmajfault"),
  };
}

function readMemoryV1(folder: string, read: Read): MemoryUsage | undefined {
  const usage = numberIn(`${folder}/memory.usage_in_bytes`, read);
  const text = read(`${folder}/memory.stat`);
  if (usage === undefined || text === undefined) return undefined;
  const stat = parseKeyed(text);
  // The lowest of this cgroup and those above it.
  const limit = limited(stat("hierarchical_memory_limit"));
  const both = stat("hierarchical_memsw_limit");
  return {
    ...memoryCounts(usage, stat, keysV1),
    limit,
    // v1 limits memory and swap together.
    swap: both === undefined ? undefined : (stat("total_swap") ?? 0n),
    swapLimit:
      limit === undefined || limited(both) === undefined ? undefined : atLeast0(both! - limit),
  };
}

function readV2(folder: string, read: Read): Omit<CgroupUsage, "atNs"> {
  const cpu = read(`${folder}/cpu.stat`);
  const usec = cpu === undefined ? undefined : parseKeyed(cpu)("usage_usec");
  return {
    cpuNs: usec === undefined ? undefined : usec * 1000n,
    memory: readMemoryV2(folder, read),
  };
}

function readMemoryV2(folder: string, read: Read): MemoryUsage | undefined {
  const usage = numberIn(`${folder}/memory.current`, read);
  const text = read(`${folder}/memory.stat`);
  if (usage === undefined || text === undefined) return undefined;
  return {
    ...memoryCounts(usage, parseKeyed(text), keysV2),
    limit: numberIn(`${folder}/memory.max`, read),
    swap: numberIn(`${folder}/memory.swap.current`, read),
    swapLimit: numberIn(`${folder}/memory.swap.max`, read),
  };
}

function readPressures(folder: string | undefined, read: Read): Partial<CgroupUsage> {
  if (folder === undefined) return {};
  return {
    cpuPressure: parsePressure(read(`${folder}/cpu.pressure`)),
    memoryPressure: parsePressure(read(`${folder}/memory.pressure`)),
    ioPressure: parsePressure(read(`${folder}/io.pressure`)),
  };
}

const pressureLine =
  /^(some|full) avg10=([\d.]+) avg60=([\d.]+) avg300=([\d.]+) total=(\d{1,20})$/gm;

/**
 * A pressure file: lines such as "some avg10=1.50 avg60=0.25 avg300=0.05 total=22408", the total in
 * microseconds (Documentation/accounting/psi.rst).
 */
export function parsePressure(text: string | undefined): Pressures | undefined {
  const found: Pressures = {};
  for (const [, kind, avg10, avg60, avg300, total] of text?.matchAll(pressureLine) ?? []) {
    found[kind as "some" | "full"] = {
      avg10: Number(avg10),
      avg60: Number(avg60),
      avg300: Number(avg300),
      totalNs: BigInt(total!) * 1000n,
    };
  }
  return found.some === undefined && found.full === undefined ? undefined : found;
}

/** Looks numbers up in lines of a key, a space and a number. */
export function parseKeyed(text: string): (key: string) => bigint | undefined {
  const lines = `\n${text}`;
  return (key) => {
    const at = lines.indexOf(`\n${key} `);
    if (at === -1) return undefined;
    const begin = at + key.length + 2;
    const end = lines.indexOf("\n", begin);
    return parseCount(end === -1 ? lines.slice(begin) : lines.slice(begin, end));
  };
}

/** The number that a file holds; undefined for no such file and for no limit ("max"). */
export function numberIn(path: string, read: Read = readKernelFile): bigint | undefined {
  const text = read(path);
  return text === undefined ? undefined : parseCount(text.trimEnd());
}

function parseCount(text: string): bigint | undefined {
  return /^\d{1,20}$/.test(text) ? BigInt(text) : undefined;
}

/** v1 has no word for it: the largest number of pages, which differs among architectures. */
const unlimitedMin = 1n << 62n;

/** A v1 limit, or undefined where it limits nothing. */
export function limited(limit: bigint | undefined): bigint | undefined {
  return limit === undefined || limit >= unlimitedMin ? undefined : limit;
}

function atLeast0(value: bigint): bigint {
  return value < 0n ? 0n : value;
}
