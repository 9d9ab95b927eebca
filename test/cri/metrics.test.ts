// Tests ListPodSandboxMetrics: cAdvisor's names, the labels of the descriptors, and values under real load.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { setTimeout as sleep } from "node:timers/promises";
import { toBigInt, toLong } from "../../src/base/int64.ts";
import { runtime } from "../../src/proto/messages.js";
import type { Metric, PodSandboxConfig } from "../../src/proto/types.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { countedStats } from "../stats.ts";

const { MetricType } = runtime.v1;
const bytes = 64n << 20n;

/** Those of a kubelet with cAdvisor, each beginning with "container_". */
const cadvisorNames = `
  blkio_device_usage_total cpu_cfs_periods_total cpu_cfs_throttled_periods_total
  cpu_cfs_throttled_seconds_total cpu_system_seconds_total cpu_usage_seconds_total
  cpu_user_seconds_total file_descriptors fs_inodes_free fs_inodes_total fs_limit_bytes
  fs_reads_bytes_total fs_reads_total fs_usage_bytes fs_writes_bytes_total fs_writes_total
  hugetlb_max_usage_bytes hugetlb_usage_bytes last_seen memory_cache memory_failcnt
  memory_failures_total memory_kernel_usage memory_mapped_file memory_max_usage_bytes memory_rss
  memory_swap memory_usage_bytes memory_working_set_bytes network_receive_bytes_total
  network_receive_errors_total network_receive_packets_dropped_total network_receive_packets_total
  network_transmit_bytes_total network_transmit_errors_total
  network_transmit_packets_dropped_total network_transmit_packets_total oom_events_total
  pressure_cpu_stalled_seconds_total pressure_cpu_waiting_seconds_total
  pressure_io_stalled_seconds_total pressure_io_waiting_seconds_total
  pressure_memory_stalled_seconds_total pressure_memory_waiting_seconds_total processes sockets
  spec_cpu_period spec_cpu_quota spec_cpu_shares spec_memory_limit_bytes
  spec_memory_reservation_limit_bytes spec_memory_swap_limit_bytes start_time_seconds threads
  threads_max ulimits_soft`
  .trim()
  .split(/\s+/)
  .map((name) => `container_${name}`);
/** What not every host counts: disks by cgroup, huge pages, pressure. */
const optional = /^container_(blkio|fs_(reads|writes)|hugetlb|pressure)_/;

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
let id: string;
let descriptors: Map<string, string[]>;
beforeAll(async () => {
  daemon = await startDaemon();
  pod = daemon.podConfig();
  podId = await daemon.runPod(pod);
  const resources = {
    cpu_period: toLong(100_000),
    cpu_quota: toLong(20_000),
    cpu_shares: toLong(512),
    memory_limit_in_bytes: toLong(bytes),
    memory_swap_limit_in_bytes: toLong(bytes),
  };
  // A pipe and a socket stay open, the CPU limit is met.
  const command = "nc -l -p 4000 & while :; do :; done";
  id = await daemon.run(podId, pod, command, { linux: { resources } });
  await countedStats(daemon, id);
  const answer = await daemon.client.ListMetricDescriptors({});
  descriptors = new Map(answer.descriptors.map(({ name, label_keys }) => [name!, label_keys!]));
  expect(descriptors.size).toBe(answer.descriptors.length);
  for (const { help } of answer.descriptors) expect(help).not.toBe("");
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

async function podMetrics() {
  const { pod_metrics } = await daemon.client.ListPodSandboxMetrics({});
  return pod_metrics.find(({ pod_sandbox_id }) => pod_sandbox_id === podId)!;
}

const labelsOf = ({ name, label_values }: Metric) =>
  Object.fromEntries(descriptors.get(name!)!.map((key, index) => [key, label_values![index]]));

test("every metric is described, with as many labels and the right type", async () => {
  const { metrics, container_metrics } = await podMetrics();
  expect(container_metrics!.map(({ container_id }) => container_id)).toEqual([id]);
  for (const metric of [...metrics!, ...container_metrics![0]!.metrics!]) {
    expect(metric.label_values).toHaveLength(descriptors.get(metric.name!)?.length ?? -1);
    expect(toBigInt(metric.timestamp)).toBeGreaterThan(1_700_000_000_000_000_000n);
    const isCounter = /_total$|failcnt$/.test(metric.name!);
    if (metric.name !== "container_fs_inodes_total") {
      expect(metric.metric_type).toBe(isCounter ? MetricType.COUNTER : MetricType.GAUGE);
    }
  }
});

test("all of cAdvisor's names are described, and have values", async () => {
  expect(cadvisorNames.filter((name) => !descriptors.has(name))).toEqual([]);
  const { metrics, container_metrics } = await podMetrics();
  const found = [...metrics!, ...container_metrics![0]!.metrics!].map(({ name }) => name!);
  const missing = cadvisorNames.filter((name) => !found.includes(name));
  expect(missing.filter((name) => !optional.test(name))).toEqual([]);
});

test("a container has its limits, its use and its files", async () => {
  const own = async () => (await podMetrics()).container_metrics![0]!.metrics!;
  const hasSocket = (metrics: Metric[]) =>
    metrics.some(({ name, value }) => name === "container_sockets" && toBigInt(value!.value) > 0n);
  let metrics = await own();
  while (!hasSocket(metrics)) {
    await sleep(100); // nc opens it when it gets its turn
    metrics = await own();
  }
  const value = (name: string, wanted: Record<string, string> = {}) => {
    const found = metrics.filter(
      (metric) =>
        metric.name === `container_${name}` &&
        Object.entries(wanted).every(([key, label]) => labelsOf(metric)[key] === label),
    );
    expect({ name, found: found.length }).toEqual({ name, found: 1 });
    return toBigInt(found[0]!.value!.value);
  };
  expect(labelsOf(metrics.find(({ name }) => name === "container_memory_rss")!)).toEqual({
    pod: pod.metadata!.name!,
    namespace: "test",
    container: expect.stringMatching(/^c-/),
    id,
    name: id,
    image: "docker.io/library/busybox:latest",
  });
  expect(value("spec_memory_limit_bytes")).toBe(bytes);
  expect(value("spec_cpu_period")).toBe(100_000n);
  expect(value("spec_cpu_quota")).toBe(20_000n);
  expect(value("spec_cpu_shares")).toBeGreaterThan(400n); // by way of a weight on v2
  expect(value("cpu_usage_seconds_total", { cpu: "total" })).toBeGreaterThanOrEqual(0n);
  expect(value("memory_working_set_bytes")).toBeGreaterThan(0n);
  expect(
    value("memory_failures_total", { failure_type: "pgfault", scope: "container" }),
  ).toBeGreaterThan(0n);
  expect(value("oom_events_total")).toBe(0n);
  expect(value("processes")).toBe(2n);
  expect(value("threads")).toBe(2n);
  expect(value("file_descriptors")).toBeGreaterThan(5n);
  expect(value("sockets")).toBe(1n);
  expect(value("ulimits_soft", { ulimit: "max_open_files" })).toBeGreaterThan(0n);
  expect(value("fs_usage_bytes")).toBeGreaterThan(0n);
  expect(value("fs_limit_bytes")).toBeGreaterThan(1n << 20n);
  expect(value("start_time_seconds")).toBeLessThanOrEqual(value("last_seen"));
});

test("a pod has the traffic of its interface and what its cgroup counts", async () => {
  const { metrics } = await podMetrics();
  const own = (name: string) => metrics!.find((metric) => metric.name === `container_${name}`)!;
  expect(labelsOf(own("network_receive_bytes_total"))).toEqual({
    pod: pod.metadata!.name!,
    namespace: "test",
    container: "",
    id: podId,
    name: podId,
    image: "",
    interface: "eth0",
  });
  expect(toBigInt(own("network_transmit_packets_total").value!.value)).toBeGreaterThanOrEqual(0n);
  expect(toBigInt(own("memory_usage_bytes").value!.value)).toBeGreaterThan(0n);
});

test("the stream has the items of the list; only running containers have metrics", async () => {
  const other = daemon.hostPodConfig();
  const otherPod = await daemon.runPod(other);
  const ended = await daemon.run(otherPod, other, ["true"]);
  await daemon.exited(ended);
  const pods = async () => {
    const found: Record<string, string[]> = {};
    for await (const { pod_sandbox_metrics } of daemon.client.StreamPodSandboxMetrics({})) {
      for (const { pod_sandbox_id, container_metrics } of pod_sandbox_metrics) {
        found[pod_sandbox_id!] = container_metrics!.map(({ container_id }) => container_id!);
      }
    }
    const { pod_metrics } = await daemon.client.ListPodSandboxMetrics({});
    expect(pod_metrics.map(({ pod_sandbox_id }) => pod_sandbox_id)).toEqual(Object.keys(found));
    return found;
  };
  expect(await pods()).toEqual({ [podId]: [id], [otherPod]: [] });
  await daemon.client.StopPodSandbox({ pod_sandbox_id: otherPod });
  expect(await pods()).toEqual({ [podId]: [id] });
  await daemon.removePod(otherPod);
});
