// Tests the table of container metrics: names, sources and values.
import { expect, test } from "bun:test";
import type { CgroupDetails } from "../../../src/stats/cgroup_details.ts";
import { metricTable, type MetricSources } from "../../../src/stats/metric_table.ts";

const diskName = (major: number, minor: number) => `/dev/${major}-${minor}`;
const details: CgroupDetails = { cpu: {}, memory: {}, io: [], hugepages: [] };
const space = { device: "/dev/sda1", bytes: 100n, inodes: 10n, inodesFree: 5n };
const disk = { major: 8, minor: 0 };

/** The values of one metric, each with its own labels. */
function valuesOf(name: string, sources: Partial<MetricSources>): string[] {
  const metric = metricTable.find((one) => one.name === `container_${name}`)!;
  const found = metric.values({ nowNs: 5_900_000_000n, diskName, ...sources });
  for (const { labels } of found) expect(labels).toHaveLength(metric.labels.length);
  return found.map(({ value, labels }) => [value, ...labels].join(" "));
}

test("every metric has a unique name, and none but the time without sources", () => {
  expect(new Set(metricTable.map(({ name }) => name)).size).toBe(metricTable.length);
  const found = metricTable.filter((metric) => metric.values({ nowNs: 1n, diskName }).length > 0);
  expect(found.map(({ name }) => name)).toEqual(["container_last_seen"]);
});

const faults = { pageFaults: 2n, majorPageFaults: 1n };
const files = { cache: 6n, mapped: 5n, activeFile: 4n, inactiveFile: 3n };
const memory = { usage: 9n, workingSet: 8n, rss: 7n, ...files, ...faults };

test.each<[string, Partial<MetricSources>, string[]]>([
  ["last_seen", {}, ["5"]],
  ["start_time_seconds", { startedAtNs: 2_999_999_999n }, ["2"]],
  ["cpu_usage_seconds_total", { sample: { atNs: 1n, cpuNs: 1_500_000_000n } }, ["1 total"]],
  ["cpu_usage_seconds_total", { sample: { atNs: 1n } }, []],
  ["memory_rss", { sample: { atNs: 1n, memory } }, ["7"]],
  [
    "memory_failures_total",
    { sample: { atNs: 1n, memory } },
    [
      "2 pgfault container",
      "1 pgmajfault container",
      "2 pgfault hierarchy",
      "1 pgmajfault hierarchy",
    ],
  ],
  ["threads_max", { details: { ...details, tasks: 3n } }, ["0"]],
  ["threads_max", { details: { ...details, tasks: 3n, tasksMax: 9n } }, ["9"]],
  ["threads_max", { details }, []],
  ["spec_memory_limit_bytes", { details }, ["0"]],
  ["spec_memory_limit_bytes", { details: { ...details, memory: { limit: 4n } } }, ["4"]],
  ["fs_limit_bytes", { space }, ["100 /dev/sda1"]],
  ["fs_usage_bytes", { space }, []],
  ["fs_usage_bytes", { space, layer: { atNs: 1n, bytes: 7n, inodes: 1n } }, ["7 /dev/sda1"]],
  [
    "fs_reads_bytes_total",
    {
      details: {
        ...details,
        io: [
          { ...disk, operation: "Read", bytes: 4n },
          { ...disk, operation: "Write", bytes: 5n },
        ],
      },
    },
    ["4 /dev/8-0"],
  ],
  [
    "blkio_device_usage_total",
    {
      details: {
        ...details,
        io: [
          { ...disk, operation: "Sync", bytes: 4n },
          { ...disk, operation: "Read", requests: 5n },
        ],
      },
    },
    ["4 /dev/8-0 8 0 Sync"],
  ],
  ["ulimits_soft", { openFilesMax: 1024 }, ["1024 max_open_files"]],
  [
    "hugetlb_usage_bytes",
    { details: { ...details, hugepages: [{ size: "2MB", usage: 4n }] } },
    ["4 2MB"],
  ],
  [
    "hugetlb_max_usage_bytes",
    { details: { ...details, hugepages: [{ size: "2MB", usage: 4n }] } },
    [],
  ],
])("container_%s", (name, sources, values) => {
  expect(valuesOf(name, sources)).toEqual(values);
});
