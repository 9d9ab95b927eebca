// Defines the metrics of ListMetricDescriptors, with cAdvisor's names and the source of each value. Pure.
// CRI's values are integers, so seconds are truncated.
import type { CgroupDetails, DiskIo } from "./cgroup_details.ts";
import type { MemoryUsage, Pressures } from "./cgroup_usage.ts";
import type { DiskSpace } from "./disks.ts";
import type { DiskUsage } from "./disk_usage.ts";
import type { InterfaceUsage } from "./network_stats.ts";
import type { OpenFiles } from "./open_files.ts";
import type { Sample } from "./sampler.ts";

/** The readings of one container or pod; missing ones have no metrics. */
export type MetricSources = {
  nowNs: bigint;
  startedAtNs?: bigint;
  sample?: Sample;
  details?: CgroupDetails;
  layer?: DiskUsage;
  space?: DiskSpace;
  openFiles?: OpenFiles;
  openFilesMax?: number;
  interfaces?: InterfaceUsage[];
  diskName: (major: number, minor: number) => string;
};

type Value = {
  value: bigint;
  /** Values of the metric's own labels. */
  labels: string[];
};
type Values = (sources: MetricSources) => Value[];
type Figure = (sources: MetricSources) => bigint | undefined;

type Metric = {
  name: string;
  help: string;
  type: "COUNTER" | "GAUGE";
  /** Names of the metric's own labels, which follow the common ones. */
  labels: string[];
  values: Values;
};

function one(figure: Figure): Values {
  return (sources) => {
    const value = figure(sources);
    return value === undefined ? [] : [{ value, labels: [] }];
  };
}

function counter(name: string, help: string, figure: Figure): Metric {
  return { name: `container_${name}`, help, type: "COUNTER", labels: [], values: one(figure) };
}

function gauge(name: string, help: string, figure: Figure): Metric {
  return { ...counter(name, help, figure), type: "GAUGE" };
}

function labelled(
  type: Metric["type"],
  name: string,
  help: string,
  own: Pick<Metric, "labels" | "values">,
): Metric {
  return { name: `container_${name}`, help, type, ...own };
}

function seconds(nanoseconds: bigint | undefined): bigint | undefined {
  return nanoseconds === undefined ? undefined : nanoseconds / 1_000_000_000n;
}

/** cAdvisor's value for "no limit". */
const noLimit = 0n;

function cpuDetail(key: keyof CgroupDetails["cpu"]): Figure {
  return ({ details }) => details?.cpu[key];
}

function cpuSeconds(key: "userNs" | "systemNs" | "throttledNs"): Figure {
  return ({ details }) => seconds(details?.cpu[key]);
}

const cpu: Metric[] = [
  // The label is cAdvisor's where it does not count by processor; dashboards select it.
  labelled("COUNTER", "cpu_usage_seconds_total", "CPU time used", {
    labels: ["cpu"],
    values: ({ sample }) => {
      const value = seconds(sample?.cpuNs);
      return value === undefined ? [] : [{ value, labels: ["total"] }];
    },
  }),
  counter("cpu_user_seconds_total", "CPU time used in user mode", cpuSeconds("userNs")),
  counter("cpu_system_seconds_total", "CPU time used in the kernel", cpuSeconds("systemNs")),
  counter("cpu_cfs_periods_total", "Elapsed periods of the CPU limit", cpuDetail("periods")),
  counter(
    "cpu_cfs_throttled_periods_total",
    "Periods in which the CPU limit was hit",
    cpuDetail("throttledPeriods"),
  ),
  counter(
    "cpu_cfs_throttled_seconds_total",
    "Time throttled by the CPU limit",
    cpuSeconds("throttledNs"),
  ),
];

function memoryUsage(key: keyof MemoryUsage): Figure {
  return ({ sample }) => sample?.memory?.[key];
}

function memoryDetail(key: keyof CgroupDetails["memory"]): Figure {
  return ({ details }) => details?.memory[key];
}

const memory: Metric[] = [
  gauge("memory_usage_bytes", "Memory in use, including caches", memoryUsage("usage")),
  gauge(
    "memory_working_set_bytes",
    "Memory in use without inactive file pages",
    memoryUsage("workingSet"),
  ),
  gauge("memory_rss", "Anonymous memory in bytes", memoryUsage("rss")),
  gauge("memory_cache", "File pages in bytes", memoryUsage("cache")),
  gauge("memory_mapped_file", "Mapped files in bytes", memoryUsage("mapped")),
  gauge("memory_swap", "Swap in use in bytes", memoryUsage("swap")),
  gauge("memory_total_active_file_bytes", "Active file pages", memoryUsage("activeFile")),
  gauge("memory_total_inactive_file_bytes", "Inactive file pages", memoryUsage("inactiveFile")),
  gauge("memory_max_usage_bytes", "Maximum memory in use", memoryDetail("maxUsage")),
  gauge("memory_kernel_usage", "Kernel memory in bytes", memoryDetail("kernel")),
  counter("memory_failcnt", "How often the memory limit was hit", memoryDetail("failures")),
  labelled("COUNTER", "memory_failures_total", "Page faults", {
    labels: ["failure_type", "scope"],
    values: ({ sample }) => pageFaults(sample),
  }),
  counter("oom_events_total", "OOM kills", ({ details }) => details?.oomKills),
];

/** All figures include the cgroups below, so cAdvisor's two scopes have the same values. */
function pageFaults(sample: Sample | undefined): Value[] {
  if (sample?.memory === undefined) return [];
  const { pageFaults: all, majorPageFaults: major } = sample.memory;
  return ["container", "hierarchy"].flatMap((scope) => [
    { value: all, labels: ["pgfault", scope] },
    { value: major, labels: ["pgmajfault", scope] },
  ]);
}

function pressure(resource: "cpu" | "memory" | "io"): Metric[] {
  const total = (kind: keyof Pressures): Figure => {
    return ({ sample }) => seconds(sample?.[`${resource}Pressure`]?.[kind]?.totalNs);
  };
  const name = (kind: string) => `pressure_${resource}_${kind}_seconds_total`;
  return [
    counter(name("waiting"), `Time in which some task waited for ${resource}`, total("some")),
    counter(name("stalled"), `Time in which all tasks waited for ${resource}`, total("full")),
  ];
}

function network(name: string, help: string, key: Exclude<keyof InterfaceUsage, "name">): Metric {
  return labelled("COUNTER", `network_${name}`, help, {
    labels: ["interface"],
    values: ({ interfaces = [] }) =>
      interfaces.map((usage) => ({ value: usage[key], labels: [usage.name] })),
  });
}

const networks: Metric[] = [
  network("receive_bytes_total", "Bytes received", "rxBytes"),
  network("receive_packets_total", "Packets received", "rxPackets"),
  network("receive_packets_dropped_total", "Packets dropped on receipt", "rxDropped"),
  network("receive_errors_total", "Errors on receipt", "rxErrors"),
  network("transmit_bytes_total", "Bytes sent", "txBytes"),
  network("transmit_packets_total", "Packets sent", "txPackets"),
  network("transmit_packets_dropped_total", "Packets dropped on sending", "txDropped"),
  network("transmit_errors_total", "Errors on sending", "txErrors"),
];

/** A gauge of the file system of the container's writable layer. */
function onDisk(
  name: string,
  help: string,
  figure: (space: DiskSpace, layer?: DiskUsage) => bigint | undefined,
): Metric {
  const values: Values = ({ space, layer }) => {
    const value = space && figure(space, layer);
    return value === undefined ? [] : [{ value, labels: [space!.device] }];
  };
  return labelled("GAUGE", `fs_${name}`, help, { labels: ["device"], values });
}

function io(name: string, help: string, operation: string, field: "bytes" | "requests"): Metric {
  const values: Values = ({ details, diskName }) =>
    (details?.io ?? [])
      .filter((disk) => disk.operation === operation && disk[field] !== undefined)
      .map((disk) => ({ value: disk[field]!, labels: [diskName(disk.major, disk.minor)] }));
  return labelled("COUNTER", `fs_${name}`, help, { labels: ["device"], values });
}

const disks: Metric[] = [
  onDisk("usage_bytes", "Bytes in the container's writable layer", (_, layer) => layer?.bytes),
  onDisk("limit_bytes", "Size of the file system of the writable layer", ({ bytes }) => bytes),
  onDisk("inodes_total", "Inodes of the file system of the writable layer", ({ inodes }) => inodes),
  onDisk(
    "inodes_free",
    "Free inodes of the file system of the writable layer",
    ({ inodesFree }) => inodesFree,
  ),
  io("reads_bytes_total", "Bytes read from disks", "Read", "bytes"),
  io("reads_total", "Reads from disks", "Read", "requests"),
  io("writes_bytes_total", "Bytes written to disks", "Write", "bytes"),
  io("writes_total", "Writes to disks", "Write", "requests"),
  labelled("COUNTER", "blkio_device_usage_total", "Bytes by device and operation", {
    labels: ["device", "major", "minor", "operation"],
    values: ({ details, diskName }) =>
      (details?.io ?? []).flatMap((disk) => byOperation(disk, diskName)),
  }),
];

function byOperation(disk: DiskIo, diskName: MetricSources["diskName"]): Value[] {
  const { major, minor, operation, bytes } = disk;
  if (bytes === undefined) return [];
  return [{ value: bytes, labels: [diskName(major, minor), `${major}`, `${minor}`, operation] }];
}

const processes: Metric[] = [
  gauge("processes", "Processes", ({ sample }) => sample?.processes),
  gauge("threads", "Threads", ({ details }) => details?.tasks),
  gauge("threads_max", "Maximum number of threads; 0: no limit", ({ details }) =>
    details?.tasks === undefined ? undefined : (details.tasksMax ?? noLimit),
  ),
  gauge("file_descriptors", "Open file descriptors", ({ openFiles }) => openFiles?.files),
  gauge("sockets", "Open sockets", ({ openFiles }) => openFiles?.sockets),
  labelled("GAUGE", "ulimits_soft", "Soft limits of the first process", {
    labels: ["ulimit"],
    values: ({ openFilesMax: value }) =>
      value === undefined ? [] : [{ value: BigInt(value), labels: ["max_open_files"] }],
  }),
];

/** Without a limit the value is 0; without details there is none. */
function memoryLimit(key: "limit" | "reservation" | "swapLimit"): Figure {
  return ({ details }) => details && (details.memory[key] ?? noLimit);
}

const limits: Metric[] = [
  gauge("spec_cpu_period", "Period of the CPU limit in microseconds", cpuDetail("periodUs")),
  gauge(
    "spec_cpu_quota",
    "CPU time per period in microseconds; absent: no limit",
    cpuDetail("quotaUs"),
  ),
  gauge("spec_cpu_shares", "CPU shares", cpuDetail("shares")),
  gauge("spec_memory_limit_bytes", "Memory limit in bytes; 0: none", memoryLimit("limit")),
  gauge(
    "spec_memory_reservation_limit_bytes",
    "Memory reservation in bytes; 0: none",
    memoryLimit("reservation"),
  ),
  gauge(
    "spec_memory_swap_limit_bytes",
    "Swap limit in bytes, on cgroup v1 including memory; 0: none",
    memoryLimit("swapLimit"),
  ),
];

function hugetlb(name: string, help: string, key: "usage" | "maxUsage"): Metric {
  const values: Values = ({ details }) =>
    (details?.hugepages ?? []).flatMap(({ size, [key]: value }) =>
      value === undefined ? [] : [{ value, labels: [size] }],
    );
  return labelled("GAUGE", `hugetlb_${name}`, help, { labels: ["pagesize"], values });
}

export const metricTable: readonly Metric[] = [
  ...cpu,
  ...memory,
  ...(["cpu", "memory", "io"] as const).flatMap(pressure),
  ...networks,
  ...disks,
  ...processes,
  ...limits,
  hugetlb("usage_bytes", "Bytes of huge pages in use", "usage"),
  hugetlb("max_usage_bytes", "Maximum bytes of huge pages in use", "maxUsage"),
  gauge("last_seen", "Time of the reading, seconds since the epoch", ({ nowNs }) => seconds(nowNs)),
  gauge("start_time_seconds", "Start time, seconds since the epoch", ({ startedAtNs }) =>
    seconds(startedAtNs),
  ),
];
