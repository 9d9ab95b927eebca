// Reads the cgroup figures that only metrics need: limits, disk I/O, throttling, huge pages. Figures that
// this host does not provide are undefined.
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { readKernelFile } from "../sys/file.ts";
import { type CgroupPaths, isGone, oomKills } from "../node/cgroup.ts";
import { finiteLimit, numberIn, parseKeyed } from "../node/cgroup_file.ts";

type Disk = { major: number; minor: number };
/** I/O on one disk; operation: Read, Write and others, named by the kernel. */
export type DiskIo = Disk & { operation: string; bytes?: bigint; requests?: bigint };

export type CgroupDetails = {
  cpu: {
    userNs?: bigint;
    systemNs?: bigint;
    periods?: bigint;
    throttledPeriods?: bigint;
    throttledNs?: bigint;
    /** v1's unit (default 1,024); converted from the weight on v2. */
    shares?: bigint;
    /** In microseconds; quota undefined: no limit. */
    periodUs?: bigint;
    quotaUs?: bigint;
  };
  memory: {
    maxUsage?: bigint;
    kernel?: bigint;
    /** How often the limit was hit. */
    failures?: bigint;
    /** Undefined: no limit. */
    limit?: bigint;
    reservation?: bigint;
    /** v1: of memory and swap together; v2: of swap. */
    swapLimit?: bigint;
  };
  oomKills?: bigint;
  /** Tasks are threads. */
  tasks?: bigint;
  /** Undefined: no limit. */
  tasksMax?: bigint;
  io: DiskIo[];
  hugepages: { size: string; usage: bigint; maxUsage?: bigint }[];
};

export function readDetails(paths: CgroupPaths): CgroupDetails {
  const { unified } = paths;
  const details = unified === undefined ? detailsV1(paths) : detailsV2(unified);
  return { ...details, oomKills: oomKills(paths) };
}

function detailsV1(paths: CgroupPaths): CgroupDetails {
  const number = (controller: string, file: string) => {
    const folder = paths[controller];
    return folder === undefined ? undefined : numberIn(join(folder, file));
  };
  const text = (controller: string, file: string) => {
    const folder = paths[controller];
    return folder === undefined ? "" : (readKernelFile(join(folder, file)) ?? "");
  };
  const stat = parseKeyed(text("cpu", "cpu.stat"));
  return {
    cpu: {
      userNs: number("cpuacct", "cpuacct.usage_user"),
      systemNs: number("cpuacct", "cpuacct.usage_sys"),
      periods: stat("nr_periods"),
      throttledPeriods: stat("nr_throttled"),
      throttledNs: stat("throttled_time"),
      shares: number("cpu", "cpu.shares"),
      periodUs: number("cpu", "cpu.cfs_period_us"),
      quotaUs: number("cpu", "cpu.cfs_quota_us"), // -1 (no limit) parses as undefined
    },
    memory: {
      maxUsage: number("memory", "memory.max_usage_in_bytes"),
      kernel: number("memory", "memory.kmem.usage_in_bytes"),
      failures: number("memory", "memory.failcnt"),
      limit: finiteLimit(number("memory", "memory.limit_in_bytes")),
      reservation: finiteLimit(number("memory", "memory.soft_limit_in_bytes")),
      swapLimit: finiteLimit(number("memory", "memory.memsw.limit_in_bytes")),
    },
    tasks: number("pids", "pids.current"),
    tasksMax: number("pids", "pids.max"),
    io: parseBlkio(
      text("blkio", "blkio.throttle.io_service_bytes_recursive"),
      text("blkio", "blkio.throttle.io_serviced_recursive"),
    ),
    hugepages: hugepages(paths["hugetlb"], "usage_in_bytes", "max_usage_in_bytes"),
  };
}

function detailsV2(folder: string): CgroupDetails {
  const text = (file: string) => readKernelFile(join(folder, file)) ?? "";
  const number = (file: string) => numberIn(join(folder, file));
  const stat = parseKeyed(text("cpu.stat"));
  const memory = parseKeyed(text("memory.stat"));
  const nanoseconds = (key: string) => {
    const usec = stat(key);
    return usec === undefined ? undefined : usec * 1000n;
  };
  const [quota = "", period = ""] = text("cpu.max").trim().split(" ");
  return {
    cpu: {
      userNs: nanoseconds("user_usec"),
      systemNs: nanoseconds("system_usec"),
      periods: stat("nr_periods"),
      throttledPeriods: stat("nr_throttled"),
      throttledNs: nanoseconds("throttled_usec"),
      shares: sharesOf(number("cpu.weight")),
      periodUs: digits(period),
      quotaUs: digits(quota),
    },
    memory: {
      maxUsage: number("memory.peak"),
      kernel: memory("kernel") ?? memory("kernel_stack"), // the sum exists since Linux 5.18
      failures: parseKeyed(text("memory.events"))("max"),
      limit: number("memory.max"),
      reservation: number("memory.min"), // as cAdvisor's
      swapLimit: number("memory.swap.max"),
    },
    tasks: number("pids.current"),
    tasksMax: number("pids.max"),
    io: parseIoStat(text("io.stat")),
    hugepages: hugepages(folder, "current", "none"),
  };
}

/**
 * Converts a weight (1 to 10,000) to shares (2 to 262,144) by the inverse of older runtimes' linear mapping; newer ones
 * map shares to weights by a curve (cpuWeight() in node/cgroup_limits.ts).
 */
function sharesOf(weight: bigint | undefined): bigint | undefined {
  return weight === undefined ? undefined : 2n + ((weight - 1n) * 262_142n) / 9_999n;
}

function digits(text: string): bigint | undefined {
  return /^\d+$/.test(text) ? BigInt(text) : undefined;
}

/** Parses v1's lines such as "8:0 Read 4096", without the totals. */
function parseBlkio(bytes: string, requests: string): DiskIo[] {
  const found = new Map<string, DiskIo>();
  const collect = (text: string, field: "bytes" | "requests") => {
    for (const [, major, minor, operation, count] of text.matchAll(/^(\d+):(\d+) (\w+) (\d+)$/gm)) {
      if (operation === "Total") continue;
      const key = `${major}:${minor} ${operation}`;
      const disk = { major: Number(major), minor: Number(minor), operation: operation! };
      found.set(key, { ...(found.get(key) ?? disk), [field]: BigInt(count!) });
    }
  };
  collect(bytes, "bytes");
  collect(requests, "requests");
  return [...found.values()];
}

/** Parses v2's lines such as "8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0". */
function parseIoStat(text: string): DiskIo[] {
  const operations = [
    ["Read", "r"],
    ["Write", "w"],
    ["Discard", "d"],
  ] as const;
  return [...text.matchAll(/^(\d+):(\d+) (.*)$/gm)].flatMap(([, major, minor, rest]) => {
    const counts = new Map(rest!.split(" ").map((pair) => pair.split("=", 2) as [string, string]));
    return operations.flatMap(([operation, letter]) => {
      const [bytes, requests] = [counts.get(`${letter}bytes`), counts.get(`${letter}ios`)];
      if (bytes === undefined || requests === undefined) return [];
      const disk = { major: Number(major), minor: Number(minor), operation };
      return [{ ...disk, bytes: BigInt(bytes), requests: BigInt(requests) }];
    });
  });
}

/**
 * Reads the usage by page size, as runtimes do: of reservations, which include pages that are not yet touched, where
 * the kernel counts them (Linux 5.7). v2 has no maximum usage.
 */
function hugepages(
  folder: string | undefined,
  usageFile: string,
  maxFile: string,
): CgroupDetails["hugepages"] {
  if (folder === undefined) return [];
  const files = new Set(filesIn(folder));
  return [...files].flatMap((file) => {
    const size = /^hugetlb\.(\w+)\./.exec(file)?.[1];
    if (size === undefined || file !== `hugetlb.${size}.${usageFile}`) return [];
    const reserved = `hugetlb.${size}.rsvd.`;
    const prefix = files.has(`${reserved}${usageFile}`) ? reserved : `hugetlb.${size}.`;
    const usage = numberIn(join(folder, `${prefix}${usageFile}`));
    if (usage === undefined) return [];
    return [{ size, usage, maxUsage: numberIn(join(folder, `${prefix}${maxFile}`)) }];
  });
}

function filesIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch (error) {
    if (isGone(error)) return [];
    throw error;
  }
}
