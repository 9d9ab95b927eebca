// Reads CPU, memory and pressure figures of a cgroup on v1, v2 and hybrid hosts (v1, with pressure figures
// in a cgroup2 without controllers). Figures that this host does not provide are undefined, never 0.
import { nowNs } from "../base/clock.ts";
import { readKernelFile } from "../sys/file.ts";
import { type CgroupPaths, processes } from "../node/cgroup.ts";
import { finiteLimit, numberIn, parseKeyed, type Read } from "../node/cgroup_file.ts";

/** Percentage of time in which tasks waited (avg…), and the total. */
export type Pressure = { avg10: number; avg60: number; avg300: number; totalNs: bigint };
/** some: at least one task waited; full: all did. */
export type Pressures = { some?: Pressure; full?: Pressure };

/** In bytes, with cAdvisor's definitions. */
export type MemoryUsage = {
  usage: bigint;
  /** usage without inactive file pages, which the kernel can drop at once. */
  workingSet: bigint;
  /** Anonymous memory. */
  rss: bigint;
  cache: bigint;
  mapped: bigint;
  activeFile: bigint;
  inactiveFile: bigint;
  pageFaults: bigint;
  majorPageFaults: bigint;
  /** The lowest limit of this cgroup and those above it; undefined: none has a limit. */
  limit?: bigint;
  /** undefined: this host does not account swap. */
  swap?: bigint;
  /** Limit of swap alone; undefined: no limit. */
  swapLimit?: bigint;
};

export type CgroupUsage = {
  /** Time of the reading, nanoseconds since the epoch. */
  atNs: bigint;
  cpuNs?: bigint;
  memory?: MemoryUsage;
  /** Includes cgroups below; only if requested. */
  processes?: bigint;
  cpuPressure?: Pressures;
  memoryPressure?: Pressures;
  ioPressure?: Pressures;
};

/** Returns undefined once the cgroup has been removed. */
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

function readV1({ cpuacct, memory }: CgroupPaths, read: Read): Omit<CgroupUsage, "atNs"> {
  return {
    cpuNs: cpuacct === undefined ? undefined : numberIn(`${cpuacct}/cpuacct.usage`, read),
    memory: memory === undefined ? undefined : readMemoryV1(memory, read),
  };
}

/** The keys of memory.stat that differ between versions; v1's total_ counters include the cgroups below. */
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
  // The lowest limits of this cgroup and those above it; v1 limits memory and swap together.
  const limit = finiteLimit(stat("hierarchical_memory_limit"));
  const withSwap = stat("hierarchical_memsw_limit");
  const both = finiteLimit(withSwap);
  return {
    ...memoryCounts(usage, stat, keysV1),
    limit,
    swap: withSwap === undefined ? undefined : (stat("total_swap") ?? 0n),
    swapLimit: limit === undefined || both === undefined ? undefined : atLeast0(both - limit),
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
 * Parses a pressure file: lines such as "some avg10=1.50 avg60=0.25 avg300=0.05 total=22408", the total in
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

function atLeast0(value: bigint): bigint {
  return value < 0n ? 0n : value;
}
