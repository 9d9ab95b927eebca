// Every metric of ListMetricDescriptors, under cAdvisor's names, and where its values come from. Pure.
// CRI's values are whole numbers, so seconds are cut.
import type { CgroupDetails, DiskIo } from "./cgroup_details.ts";
import type { Pressures } from "../node/cgroup_stats.ts";
import type { DiskSpace } from "./disks.ts";
import type { DiskUsage } from "./disk_usage.ts";
import type { InterfaceUsage } from "./network_stats.ts";
import type { OpenFiles } from "./process_stats.ts";
import type { Sample } from "./sampler.ts";

/** What is known of one container or pod; whatever is missing has no metrics. */
export type Facts = {
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

/** further: of the labels that only this metric has. */
type Value = { value: bigint; further: string[] };

export type MetricDefinition = {
  name: string;
  help: string;
  type: "COUNTER" | "GAUGE";
  /** Names of labels after those that every metric has. */
  labels: string[];
  values: (facts: Facts) => Value[];
};

type Figure = (facts: Facts) => bigint | undefined;

function one(figure: Figure): (facts: Facts) => Value[] {
  return (facts) => {
    const value = figure(facts);
    return value === undefined ? [] : [{ value, further: [] }];
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

/** cAdvisor's word for no limit. */
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
    "Periods of the CPU limit",
    ({ details }) => details?.cpu.periods,
  ),
  counter(
    "cpu_cfs_throttled_periods_total",
    "Periods in which the CPU limit was met",
    ({ details }) => details?.cpu.throttledPeriods,
  ),
  counter("cpu_cfs_throttled_seconds_total", "Time stopped by the CPU limit", ({ details }) =>
    seconds(details?.cpu.throttledNs),
  ),
];

const memory: MetricDefinition[] = [
  gauge("memory_usage_bytes", "Memory in use, caches too", ({ sample }) => sample?.memory?.usage),
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
    "Most memory that was in use",
    ({ details }) => details?.memory.maxUsage,
  ),
  gauge("memory_kernel_usage", "Kernel memory in bytes", ({ details }) => details?.memory.kernel),
  counter(
    "memory_failcnt",
    "How often the memory limit was met",
    ({ details }) => details?.memory.failures,
  ),
  {
    ...counter("memory_failures_total", "Page faults", () => undefined),
    labels: ["failure_type", "scope"],
    values: ({ sample }) => pageFaults(sample),
  },
  counter("oom_events_total", "Processes killed for memory", ({ details }) => details?.oomKills),
];

/** A container's cgroup with those below it is the container: both of cAdvisor's scopes are one. */
function pageFaults(sample: Sample | undefined): Value[] {
  if (sample?.memory === undefined) return [];
  const { pageFaults: all, majorPageFaults: major } = sample.memory;
  return ["container", "hierarchy"].flatMap((scope) => [
    { value: all, further: ["pgfault", scope] },
    { value: major, further: ["pgmajfault", scope] },
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
  const values = ({ interfaces = [] }: Facts) =>
    interfaces.map((usage) => ({ value: figure(usage), further: [usage.name] }));
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
  figure: (space: DiskSpace, facts: Facts) => bigint | undefined,
): MetricDefinition {
  const values = (facts: Facts) => {
    const value = facts.space && figure(facts.space, facts);
    return value === undefined ? [] : [{ value, further: [facts.space!.device] }];
  };
  return { ...gauge(`fs_${name}`, help, () => undefined), labels: ["device"], values };
}

function io(
  name: string,
  help: string,
  operation: string,
  field: "bytes" | "requests",
): MetricDefinition {
  const values = ({ details, diskName }: Facts) =>
    (details?.io ?? [])
      .filter((disk) => disk.operation === operation && disk[field] !== undefined)
      .map((disk) => ({ value: disk[field]!, further: [diskName(disk.major, disk.minor)] }));
  return { ...counter(`fs_${name}`, help, () => undefined), labels: ["device"], values };
}

const disks: MetricDefinition[] = [
  onDisk(
    "usage_bytes",
    "Bytes written into the container's own layer",
    (_, { layer }) => layer?.bytes,
  ),
  onDisk("limit_bytes", "Size of the file system of that layer", ({ bytes }) => bytes),
  onDisk("inodes_total", "Inodes of that file system", ({ inodes }) => inodes),
  onDisk("inodes_free", "Free inodes of that file system", ({ inodesFree }) => inodesFree),
  io("reads_bytes_total", "Bytes read from disks", "Read", "bytes"),
  io("reads_total", "Reads from disks", "Read", "requests"),
  io("writes_bytes_total", "Bytes written to disks", "Write", "bytes"),
  io("writes_total", "Writes to disks", "Write", "requests"),
  {
    ...counter("blkio_device_usage_total", "Bytes by disk and operation", () => undefined),
    labels: ["device", "major", "minor", "operation"],
    values: ({ details, diskName }) =>
      (details?.io ?? []).flatMap((disk) => byOperation(disk, diskName)),
  },
];

function byOperation(disk: DiskIo, diskName: Facts["diskName"]): Value[] {
  const { major, minor, operation, bytes } = disk;
  if (bytes === undefined) return [];
  return [{ value: bytes, further: [diskName(major, minor), `${major}`, `${minor}`, operation] }];
}

const processes: MetricDefinition[] = [
  gauge("processes", "Processes", ({ sample }) => sample?.processes),
  gauge("threads", "Threads", ({ details }) => details?.tasks),
  gauge("threads_max", "Most threads allowed; 0: no limit", ({ details }) =>
    details?.tasks === undefined ? undefined : (details.tasksMax ?? noLimit),
  ),
  gauge("file_descriptors", "Open file descriptors", ({ openFiles }) => openFiles?.files),
  gauge("sockets", "Open sockets", ({ openFiles }) => openFiles?.sockets),
  {
    ...gauge("ulimits_soft", "Soft limits of the first process", () => undefined),
    labels: ["ulimit"],
    values: ({ openFilesMax: value }) =>
      value === undefined ? [] : [{ value, further: ["max_open_files"] }],
  },
];

const limits: MetricDefinition[] = [
  gauge(
    "spec_cpu_period",
    "Microseconds of a period of the CPU limit",
    ({ details }) => details?.cpu.periodUs,
  ),
  gauge(
    "spec_cpu_quota",
    "Microseconds of CPU time in a period; none: no limit",
    ({ details }) => details?.cpu.quotaUs,
  ),
  gauge("spec_cpu_shares", "Share of the CPU", ({ details }) => details?.cpu.shares),
  gauge(
    "spec_memory_limit_bytes",
    "Memory limit; 0: none",
    ({ details }) => details && (details.memory.limit ?? noLimit),
  ),
  gauge(
    "spec_memory_reservation_limit_bytes",
    "Memory that is kept; 0: none",
    ({ details }) => details && (details.memory.reservation ?? noLimit),
  ),
  gauge(
    "spec_memory_swap_limit_bytes",
    "Swap limit, on cgroup v1 with the memory's; 0: none",
    ({ details }) => details && (details.memory.swapLimit ?? noLimit),
  ),
];

function hugetlb(
  name: string,
  help: string,
  figure: (pages: CgroupDetails["hugepages"][number]) => bigint | undefined,
): MetricDefinition {
  const values = ({ details }: Facts) =>
    (details?.hugepages ?? []).flatMap((pages) => {
      const value = figure(pages);
      return value === undefined ? [] : [{ value, further: [pages.size] }];
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
  hugetlb("usage_bytes", "Huge pages in use", ({ usage }) => usage),
  hugetlb("max_usage_bytes", "Most huge pages that were in use", ({ maxUsage }) => maxUsage),
  gauge("last_seen", "When it was last seen, seconds since the epoch", ({ nowNs }) =>
    seconds(nowNs),
  ),
  gauge("start_time_seconds", "When it was started, seconds since the epoch", ({ startedAtNs }) =>
    seconds(startedAtNs),
  ),
];
