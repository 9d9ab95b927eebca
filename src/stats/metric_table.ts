// Defines the metrics of ListMetricDescriptors, with cAdvisor's names and the source of each value. Pure.
// CRI's values are integers, so seconds are truncated.
import type { CgroupDetails, DiskIo } from "./cgroup_details.ts";
import type { Pressures } from "./cgroup_usage.ts";
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
  openFilesMax?: bigint;
  interfaces?: InterfaceUsage[];
  diskName: (major: number, minor: number) => string;
};

/** labels: the values of the metric's own labels. */
type Value = { value: bigint; labels: string[] };

export type MetricDefinition = {
  name: string;
  help: string;
  type: "COUNTER" | "GAUGE";
  /** Names of the metric's own labels, which follow the common ones. */
  labels: string[];
  values: (sources: MetricSources) => Value[];
};

type Figure = (sources: MetricSources) => bigint | undefined;

function one(figure: Figure): (sources: MetricSources) => Value[] {
  return (sources) => {
    const value = figure(sources);
    return value === undefined ? [] : [{ value, labels: [] }];
  };
}

function counter(name: string, help: string, figure: Figure): MetricDefinition {
  return { name: `container_${name}`, help, type: "COUNTER", labels: [], values: one(figure) };
}

function gauge(name: string, help: string, figure: Figure): MetricDefinition {
  return { name: `container_${name}`, help, type: "GAUGE", labels: [], values: one(figure) };
}

function seconds(nanoseconds: bigint | undefined): bigint | undefined {
  return nanoseconds === undefined ? undefined : nanoseconds / 1_000_000_000n;
}

/** cAdvisor's value for "no limit". */
const noLimit = 0n;

const cpu: MetricDefinition[] = [
  counter("cpu_usage_seconds_total", "CPU time used", ({ sample }) => seconds(sample?.cpuNs)),
  counter("cpu_user_seconds_total", "CPU time used in user mode", ({ details }) =>
    seconds(details?.cpu.userNs),
  ),
  counter("cpu_system_seconds_total", "CPU time used in the kernel", ({ details }) =>
    seconds(details?.cpu.systemNs),
  ),
  counter(
    "cpu_cfs_periods_total",
    "Elapsed periods of the CPU limit",
    ({ details }) => details?.cpu.periods,
  ),
  counter(
    "cpu_cfs_throttled_periods_total",
    "Periods in which the CPU limit was hit",
    ({ details }) => details?.cpu.throttledPeriods,
  ),
  counter("cpu_cfs_throttled_seconds_total", "Time throttled by the CPU limit", ({ details }) =>
    seconds(details?.cpu.throttledNs),
  ),
];

const memory: MetricDefinition[] = [
  gauge(
    "memory_usage_bytes",
    "Memory in use, including caches",
    ({ sample }) => sample?.memory?.usage,
  ),
  gauge(
    "memory_working_set_bytes",
    "Memory in use without inactive file pages",
    ({ sample }) => sample?.memory?.workingSet,
  ),
  gauge("memory_rss", "Anonymous memory in bytes", ({ sample }) => sample?.memory?.rss),
  gauge("memory_cache", "File pages in bytes", ({ sample }) => sample?.memory?.cache),
  gauge("memory_mapped_file", "Mapped files in bytes", ({ sample }) => sample?.memory?.mapped),
  gauge("memory_swap", "Swap in use in bytes", ({ sample }) => sample?.memory?.swap),
  gauge(
    "memory_total_active_file_bytes",
    "Active file pages",
    ({ sample }) => sample?.memory?.activeFile,
  ),
  gauge(
    "memory_total_inactive_file_bytes",
    "Inactive file pages",
    ({ sample }) => sample?.memory?.inactiveFile,
  ),
  gauge(
    "memory_max_usage_bytes",
    "Maximum memory in use",
    ({ details }) => details?.memory.maxUsage,
  ),
  gauge("memory_kernel_usage", "Kernel memory in bytes", ({ details }) => details?.memory.kernel),
  counter(
    "memory_failcnt",
    "How often the memory limit was hit",
    ({ details }) => details?.memory.failures,
  ),
  {
    ...counter("memory_failures_total", "Page faults", () => undefined),
    labels: ["failure_type", "scope"],
    values: ({ sample }) => pageFaults(sample),
  },
  counter("oom_events_total", "OOM kills", ({ details }) => details?.oomKills),
];

/** Our figures include the cgroups below, so cAdvisor's two scopes have the same values. */
function pageFaults(sample: Sample | undefined): Value[] {
  if (sample?.memory === undefined) return [];
  const { pageFaults: all, majorPageFaults: major } = sample.memory;
  return ["container", "hierarchy"].flatMap((scope) => [
    { value: all, labels: ["pgfault", scope] },
    { value: major, labels: ["pgmajfault", scope] },
  ]);
}

function pressure(resource: "cpu" | "memory" | "io"): MetricDefinition[] {
  const total = (kind: keyof Pressures): Figure => {
    return ({ sample }) => seconds(sample?.[`${resource}Pressure`]?.[kind]?.totalNs);
  };
  const name = (kind: string) => `pressure_${resource}_${kind}_seconds_total`;
  return [
    counter(name("waiting"), `Time in which some task waited for ${resource}`, total("some")),
    counter(name("stalled"), `Time in which all tasks waited for ${resource}`, total("full")),
  ];
}

function network(
  name: string,
  help: string,
  figure: (usage: InterfaceUsage) => bigint,
): MetricDefinition {
  const values = ({ interfaces = [] }: MetricSources) =>
    interfaces.map((usage) => ({ value: figure(usage), labels: [usage.name] }));
  return { ...counter(`network_${name}`, help, () => undefined), labels: ["interface"], values };
}

const networks: MetricDefinition[] = [
  network("receive_bytes_total", "Bytes received", (usage) => usage.rxBytes),
  network("receive_packets_total", "Packets received", (usage) => usage.rxPackets),
  network(
    "receive_packets_dropped_total",
    "Packets dropped on receipt",
    (usage) => usage.rxDropped,
  ),
  network("receive_errors_total", "Errors on receipt", (usage) => usage.rxErrors),
  network("transmit_bytes_total", "Bytes sent", (usage) => usage.txBytes),
  network("transmit_packets_total", "Packets sent", (usage) => usage.txPackets),
  network(
    "transmit_packets_dropped_total",
    "Packets dropped on sending",
    (usage) => usage.txDropped,
  ),
  network("transmit_errors_total", "Errors on sending", (usage) => usage.txErrors),
];

function onDisk(
  name: string,
  help: string,
  figure: (space: DiskSpace, sources: MetricSources) => bigint | undefined,
): MetricDefinition {
  const values = (sources: MetricSources) => {
    const value = sources.space && figure(sources.space, sources);
    return value === undefined ? [] : [{ value, labels: [sources.space!.device] }];
  };
  return { ...gauge(`fs_${name}`, help, () => undefined), labels: ["device"], values };
}

function io(
  name: string,
  help: string,
  operation: string,
  field: "bytes" | "requests",
): MetricDefinition {
  const values = ({ details, diskName }: MetricSources) =>
    (details?.io ?? [])
      .filter((disk) => disk.operation === operation && disk[field] !== undefined)
      .map((disk) => ({ value: disk[field]!, labels: [diskName(disk.major, disk.minor)] }));
  return { ...counter(`fs_${name}`, help, () => undefined), labels: ["device"], values };
}

const disks: MetricDefinition[] = [
  onDisk("usage_bytes", "Bytes in the container's writable layer", (_, { layer }) => layer?.bytes),
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
  {
    ...counter("blkio_device_usage_total", "Bytes by device and operation", () => undefined),
    labels: ["device", "major", "minor", "operation"],
    values: ({ details, diskName }) =>
      (details?.io ?? []).flatMap((disk) => byOperation(disk, diskName)),
  },
];

function byOperation(disk: DiskIo, diskName: MetricSources["diskName"]): Value[] {
  const { major, minor, operation, bytes } = disk;
  if (bytes === undefined) return [];
  return [{ value: bytes, labels: [diskName(major, minor), `${major}`, `${minor}`, operation] }];
}

const processes: MetricDefinition[] = [
  gauge("processes", "Processes", ({ sample }) => sample?.processes),
  gauge("threads", "Threads", ({ details }) => details?.tasks),
  gauge("threads_max", "Maximum number of threads; 0: no limit", ({ details }) =>
    details?.tasks === undefined ? undefined : (details.tasksMax ?? noLimit),
  ),
  gauge("file_descriptors", "Open file descriptors", ({ openFiles }) => openFiles?.files),
  gauge("sockets", "Open sockets", ({ openFiles }) => openFiles?.sockets),
  {
    ...gauge("ulimits_soft", "Soft limits of the first process", () => undefined),
    labels: ["ulimit"],
    values: ({ openFilesMax: value }) =>
      value === undefined ? [] : [{ value, labels: ["max_open_files"] }],
  },
];

const limits: MetricDefinition[] = [
  gauge(
    "spec_cpu_period",
    "Period of the CPU limit in microseconds",
    ({ details }) => details?.cpu.periodUs,
  ),
  gauge(
    "spec_cpu_quota",
    "CPU time per period in microseconds; absent: no limit",
    ({ details }) => details?.cpu.quotaUs,
  ),
  gauge("spec_cpu_shares", "CPU shares", ({ details }) => details?.cpu.shares),
  gauge(
    "spec_memory_limit_bytes",
    "Memory limit in bytes; 0: none",
    ({ details }) => details && (details.memory.limit ?? noLimit),
  ),
  gauge(
    "spec_memory_reservation_limit_bytes",
    "Memory reservation in bytes; 0: none",
    ({ details }) => details && (details.memory.reservation ?? noLimit),
  ),
  gauge(
    "spec_memory_swap_limit_bytes",
    "Swap limit in bytes, on cgroup v1 including memory; 0: none",
    ({ details }) => details && (details.memory.swapLimit ?? noLimit),
  ),
];

function hugetlb(
  name: string,
  help: string,
  figure: (pages: CgroupDetails["hugepages"][number]) => bigint | undefined,
): MetricDefinition {
  const values = ({ details }: MetricSources) =>
    (details?.hugepages ?? []).flatMap((pages) => {
      const value = figure(pages);
      return value === undefined ? [] : [{ value, labels: [pages.size] }];
    });
  return { ...gauge(`hugetlb_${name}`, help, () => undefined), labels: ["pagesize"], values };
}

export const metricTable: readonly MetricDefinition[] = [
  ...cpu,
  ...memory,
  ...(["cpu", "memory", "io"] as const).flatMap(pressure),
  ...networks,
  ...disks,
  ...processes,
  ...limits,
  hugetlb("usage_bytes", "Bytes of huge pages in use", ({ usage }) => usage),
  hugetlb("max_usage_bytes", "Maximum bytes of huge pages in use", ({ maxUsage }) => maxUsage),
  gauge("last_seen", "Time of the reading, seconds since the epoch", ({ nowNs }) => seconds(nowNs)),
  gauge("start_time_seconds", "Start time, seconds since the epoch", ({ startedAtNs }) =>
    seconds(startedAtNs),
  ),
];
