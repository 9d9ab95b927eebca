// Tests the figures that a shim answers to Stats, of cgroup v1 and v2, with and without a guest's gaps.
import { describe, expect, test } from "bun:test";
import { toLong } from "../../../src/base/int64.ts";
import { encodeMessage, type Encoder } from "../../../src/base/protobuf.ts";
import { task } from "../../../src/proto/task.js";
import { usageOfTask } from "../../../src/stats/task_metrics.ts";

function usage<Metrics>(type_url: string, type: Encoder<Metrics>, metrics: Metrics) {
  const stats = { type_url, value: encodeMessage(type, metrics) };
  return usageOfTask(encodeMessage(task.StatsResponse, { stats }));
}
const v1 = (metrics: task.MetricsV1.$Properties) =>
  usage("io.containerd.cgroups.v1.Metrics", task.MetricsV1, metrics);
const v2 = (metrics: task.MetricsV2.$Properties) =>
  usage("types.containerd.io/io.containerd.cgroups.v2.Metrics", task.MetricsV2, metrics);
const noLimit = toLong(2n ** 63n - 4096n);

describe("the usage of a shim's container", () => {
  test("comes from cgroup v2, in nanoseconds and bytes", () => {
    const memory = {
      anon: toLong(10),
      file: toLong(20),
      inactive_file: toLong(5),
      pgfault: toLong(7),
      usage: toLong(100),
      usage_limit: toLong(1000),
    };
    const found = v2({ pids: { current: toLong(3) }, cpu: { usage_usec: toLong(9) }, memory });
    expect(found).toMatchObject({
      processes: 3n,
      cpuNs: 9000n,
      memory: { usage: 100n, workingSet: 95n, rss: 10n, cache: 20n, pageFaults: 7n, limit: 1000n },
    });
  });

  test("comes from cgroup v1, the totals first", () => {
    const memory = {
      rss: toLong(1),
      total_rss: toLong(11),
      total_inactive_file: toLong(30),
      pg_fault: toLong(4),
      usage: { usage: toLong(200), limit: noLimit },
    };
    const found = v1({ cpu: { usage: { total: toLong(77) } }, memory });
    expect(found).toMatchObject({
      processes: undefined,
      cpuNs: 77n,
      memory: { usage: 200n, workingSet: 170n, rss: 11n, pageFaults: 4n, limit: undefined },
    });
  });

  test("has no negative working set, and no figures that are not there", () => {
    const memory = { usage: toLong(1), inactive_file: toLong(9) };
    expect(v2({ memory })?.memory?.workingSet).toBe(0n);
    expect(v2({})).toMatchObject({ processes: undefined, cpuNs: undefined, memory: undefined });
    expect(v1({})).toMatchObject({ cpuNs: undefined, memory: undefined });
  });

  test("is absent for an answer of another type", () => {
    expect(usage("io.containerd.windows.Stats", task.MetricsV2, {})).toBeUndefined();
    expect(usageOfTask(new Uint8Array())).toBeUndefined();
  });
});
