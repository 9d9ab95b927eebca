// Tests updates of resources and their rollback.
import { describe, expect, test } from "bun:test";
import { toLong } from "../../../src/base/int64.ts";
import {
  adjustedRecord,
  checkHugepages,
  explicitResources,
  mergedResources,
  ociResources,
  oomScoreAdjAdvice,
  possibleOomScoreAdj,
  updatedResources,
  withoutLowSwapLimit,
  withoutSwapLimit,
} from "../../../src/spec/resources.ts";
import { codeAndMessage, host } from "../../spec/inputs.ts";

test("oomScoreAdjAdvice() names the key if the daemon may not set the value", () => {
  const weak = { ...host, oomScoreAdj: 0, capabilities: ["CAP_KILL"] };
  expect(oomScoreAdjAdvice(-997n, weak, false)).toBe(
    "; its oom_score_adj -997 is lower than the daemon's 0, which needs CAP_SYS_RESOURCE: set restrict-oom-score-adj",
  );
  expect(oomScoreAdjAdvice(-997n, weak, true)).toBe("");
  expect(oomScoreAdjAdvice(5n, weak, false)).toBe("");
  expect(oomScoreAdjAdvice(-997n, { ...weak, capabilities: ["CAP_SYS_RESOURCE"] }, false)).toBe("");
});

test("possibleOomScoreAdj() is clamped to the daemon's if restricted or without CAP_SYS_RESOURCE", () => {
  const weak = { ...host, oomScoreAdj: -500, capabilities: ["CAP_KILL"] };
  const strong = { ...weak, capabilities: ["CAP_SYS_RESOURCE"] };
  expect(possibleOomScoreAdj(-900n, weak, false)).toBe(-500);
  expect(possibleOomScoreAdj(-900n, strong, false)).toBe(-900);
  expect(possibleOomScoreAdj(-900n, strong, true)).toBe(-500);
  expect(possibleOomScoreAdj(900n, weak, true)).toBe(900);
  expect(() => possibleOomScoreAdj(1001n, weak, false)).toThrow("outside");
});

test("withoutSwapLimit() drops the swap limit on a host without swap accounting", () => {
  const requested = { memory_limit_in_bytes: toLong(5), memory_swap_limit_in_bytes: toLong(6) };
  const unaccounted = { ...host, swapLimit: false };
  expect(withoutSwapLimit(requested, host)).toBeUndefined();
  expect(withoutSwapLimit(requested, unaccounted)).toEqual({
    memory_limit_in_bytes: toLong(5),
    memory_swap_limit_in_bytes: toLong(0),
  });
  expect(withoutSwapLimit({ memory_limit_in_bytes: toLong(5) }, unaccounted)).toBeUndefined();
  expect(withoutSwapLimit(null, unaccounted)).toBeUndefined();
});

test("withoutLowSwapLimit() drops only a swap limit below the memory limit", () => {
  const limits = (limit: number, swap: number) => ({
    memory_limit_in_bytes: toLong(limit),
    memory_swap_limit_in_bytes: toLong(swap),
  });
  for (const low of [limits(200, 100), limits(-1, 100)]) {
    const { memory_limit_in_bytes } = low;
    expect(withoutLowSwapLimit(low)).toEqual({ memory_limit_in_bytes });
  }
  for (const fine of [limits(100, 100), limits(100, 200), limits(200, -1), limits(200, 0)]) {
    expect(withoutLowSwapLimit(fine)).toEqual(fine);
  }
});

describe("mergedResources()", () => {
  test("a memory limit without a swap limit allows no swap", () => {
    const v1 = { ...host, cgroupVersion: 1 as const, swapLimit: true };
    const old = { memory_limit_in_bytes: toLong(100), memory_swap_limit_in_bytes: toLong(100) };
    for (const limit of [200n, 50n, -1n]) {
      const merged = mergedResources(old, { memory_limit_in_bytes: toLong(limit) });
      expect(ociResources(merged, [], v1).memory).toEqual({ limit, swap: limit });
    }
    const both = { memory_limit_in_bytes: toLong(200), memory_swap_limit_in_bytes: toLong(300) };
    expect(mergedResources(old, both)).toMatchObject(both);
    expect(mergedResources(old, { cpu_shares: toLong(2) })).toMatchObject(old);
  });

  test("keeps unspecified fields", () => {
    const old = {
      cpu_shares: toLong(512),
      oom_score_adj: toLong(-5),
      unified: { "memory.high": "1", "cpu.idle": "0" },
      hugepage_limits: [{ page_size: "2MB", limit: toLong(0) }],
    };
    const given = {
      memory_limit_in_bytes: toLong(2n ** 53n + 1n),
      oom_score_adj: toLong(900),
      cpuset_cpus: "0",
      unified: { "memory.high": "2" },
      hugepage_limits: [{ page_size: "1GB", limit: toLong(1) }],
    };
    expect(mergedResources(old, given)).toEqual({
      cpu_shares: toLong(512),
      oom_score_adj: toLong(900),
      memory_limit_in_bytes: toLong(2n ** 53n + 1n),
      cpuset_cpus: "0",
      unified: { "memory.high": "2", "cpu.idle": "0" },
      hugepage_limits: [
        { page_size: "2MB", limit: toLong(0) },
        { page_size: "1GB", limit: toLong(1) },
      ],
    });
  });
});

describe("of huge pages, which cannot change while a container runs,", () => {
  const limits = (limit: number) => ({
    hugepage_limits: [{ page_size: "2MB", limit: toLong(limit) }],
  });
  const bundle = (limit: bigint) => ({
    devices: [],
    hugepageLimits: [{ pageSize: "2MB", limit }],
  });

  test("checkHugepages() accepts recorded and set limits, and refuses others", () => {
    checkHugepages({}, {}, bundle(0n));
    checkHugepages(limits(1), limits(1), bundle(3n));
    checkHugepages(limits(1), limits(3), bundle(3n));
    const changed = codeAndMessage(() => checkHugepages(limits(1), limits(2), bundle(3n)));
    expect(changed).toStartWith("FAILED_PRECONDITION: hugepage_limits: the limit of 2MB");
    const added = codeAndMessage(() => checkHugepages({}, limits(2), { devices: [] }));
    expect(added).toContain("FAILED_PRECONDITION");
  });

  test("adjustedRecord() keeps CRI's limits, and takes what else plugins set", () => {
    const adjusted = { ...limits(3), cpu_shares: toLong(7) };
    expect(adjustedRecord(limits(1), adjusted)).toMatchObject({
      ...limits(1),
      cpu_shares: toLong(7),
    });
  });

  test("updatedResources() keeps a plugin's limit when CRI's is repeated", () => {
    const repeated = { was: bundle(1n), wanted: bundle(1n) };
    expect(updatedResources(bundle(3n), repeated)).toEqual(bundle(3n));
    const changed = { was: bundle(1n), wanted: bundle(2n) };
    expect(updatedResources(bundle(3n), changed)).toEqual(bundle(2n));
  });
});

describe("updatedResources()", () => {
  test("applies CRI's changes and keeps the base spec's fields", () => {
    const bundle = {
      devices: [{ allow: false, access: "rwm" }],
      pids: { limit: 100n },
      cpu: { shares: 512n, idle: 1 },
      memory: { limit: 5n },
      unified: { "memory.high": "1", "io.weight": "9" },
      hugepageLimits: [{ pageSize: "1GB", limit: 0n }],
    };
    const was = { devices: [], cpu: { shares: 512n }, unified: { "memory.high": "1" } };
    const wanted = {
      devices: [],
      cpu: { shares: 512n, quota: 7n },
      memory: { limit: 6n, swap: 6n },
      unified: { "memory.high": "2" },
      hugepageLimits: [{ pageSize: "2MB", limit: 3n }],
    };
    expect(updatedResources(bundle, { was, wanted })).toEqual({
      ...bundle,
      cpu: { shares: 512n, idle: 1, quota: 7n },
      memory: { limit: 6n, swap: 6n },
      unified: { "memory.high": "2", "io.weight": "9" },
      hugepageLimits: [
        { pageSize: "1GB", limit: 0n },
        { pageSize: "2MB", limit: 3n },
      ],
    } as typeof bundle);
    const nothing = { devices: [] };
    expect(updatedResources(nothing, { was: nothing, wanted: nothing })).toEqual(nothing);
  });
});

describe("explicitResources()", () => {
  const cpuset = { cpus: "0-1", mems: "0" };

  test("fills in the kernel's defaults", () => {
    const v1 = { ...host, cgroupVersion: 1 as const, swapLimit: true };
    expect(explicitResources(ociResources({}, [], v1), v1, cpuset)).toEqual({
      devices: [],
      memory: { limit: -1n, swap: -1n },
      cpu: { cpus: "0-1", mems: "0", quota: -1n, period: 100_000n, shares: 1_024n },
    });
    const v2 = { ...host, cgroupVersion: 2 as const, swapLimit: false };
    expect(explicitResources(ociResources({}, [], v2), v2, cpuset)).toEqual({
      devices: [],
      memory: { limit: -1n },
      cpu: { cpus: "0-1", mems: "0", quota: -1n, period: 100_000n },
      unified: { "cpu.weight": "100" },
    });
  });

  test.each<[1 | 2, string[], string[]]>([
    [1, ["memory"], ["cpus", "mems", "period", "quota", "shares"]],
    [2, ["memory"], ["cpu.weight", "cpus", "mems", "period", "quota"]],
    [1, ["cpu"], ["cpus", "limit", "mems", "swap"]],
    [2, ["cpuset", "memory"], ["cpu.weight", "period", "quota"]],
    [2, ["cpu", "cpuset"], ["limit", "swap"]],
  ])("cgroup v%d: leaves out what %j limit, which are absent", (version, absent, expected) => {
    const node = { ...host, cgroupVersion: version, swapLimit: true, absentControllers: absent };
    const { memory, cpu, unified } = explicitResources({ devices: [] }, node, cpuset);
    expect(Object.keys({ ...memory, ...cpu, ...unified }).toSorted()).toEqual(expected);
    const limited = { devices: [], memory: { limit: 9n }, cpu: { shares: 7n } };
    const explicit = explicitResources(limited, node, cpuset);
    expect([explicit.memory?.limit, explicit.cpu?.shares]).toEqual([
      absent.includes("memory") ? undefined : 9n,
      absent.includes("cpu") ? undefined : 7n,
    ]);
  });

  test("keeps requested values", () => {
    const requested = { cpu_shares: toLong(7), cpuset_cpus: "1", memory_limit_in_bytes: toLong(9) };
    const v2 = { ...host, cgroupVersion: 2 as const, swapLimit: true };
    expect(explicitResources(ociResources(requested, [], v2), v2, cpuset)).toEqual({
      devices: [],
      memory: { limit: 9n, swap: 9n },
      cpu: { cpus: "1", mems: "0", quota: -1n, period: 100_000n, shares: 7n },
    });
  });
});
