// Tests the rates and the table of `isulad-ts stats`.
import { expect, test } from "bun:test";
import { toLong } from "../../../src/base/int64.ts";
import { redrawn, statsTable, usagesOf } from "../../../src/cli/stats.ts";
import type { ContainerStats } from "../../../src/proto/types.ts";

const second = 1_000_000_000n;
const value = (count: number | bigint) => ({ value: toLong(count) });

function stats(id: string, atNs: bigint, usedNs: bigint): ContainerStats {
  return {
    attributes: { id, metadata: { name: "app" } },
    cpu: { timestamp: toLong(atNs), usage_core_nano_seconds: value(usedNs) },
  };
}

test("usagesOf() computes the rate between two answers, else uses the daemon's", () => {
  const cpu = { timestamp: toLong(1n), usage_nano_cores: value(250_000_000) };
  const now = [
    stats("a", 3n * second, 2n * second),
    { ...stats("b", second, second), cpu },
    stats("c", second, second),
  ];
  const usages = usagesOf([stats("a", second, second)], now, {
    keyOf: ({ attributes }) => attributes?.id,
    cpuOf: ({ cpu }) => cpu,
  });
  expect(usages.map(({ cores }) => cores)).toEqual([0.5, 0.25, undefined]);
  expect(usages.map((usage) => usage.stats)).toEqual(now);
});

test("statsTable() has crictl's columns, and a dash for unknown values", () => {
  const full: ContainerStats = {
    ...stats("0123456789abcdef", second, second),
    memory: { working_set_bytes: value(1_500_000) },
    writable_layer: { used_bytes: value(20_480), inodes_used: value(7) },
    swap: { swap_usage_bytes: value(0) },
  };
  const usages = [
    { stats: full, cores: 0.125 },
    { stats: stats("b", second, second), cores: undefined },
  ];
  const columns = statsTable(usages, false)
    .split("\n")
    .map((line) => line.split(/\s{2,}/));
  expect(columns).toEqual([
    ["CONTAINER", "NAME", "CPU %", "MEM", "DISK", "INODES", "SWAP"],
    ["0123456789abc", "app", "12.50", "1.5MB", "20.5kB", "7", "0B"],
    ["b", "app", "-", "-", "-", "-", "-"],
    [""],
  ]);
  expect(statsTable(usages, true)).toContain("0123456789abcdef");
});

test("a watched table is drawn over the last, and ends before the screen does", () => {
  const table = ["NAME", "a", "b", "c"].map((line) => `${line}\n`).join("");
  const erase = "\u001b[K\n";
  expect(redrawn(table, 5)).toBe(`\u001b[HNAME${erase}a${erase}b${erase}c${erase}\u001b[J`);
  expect(redrawn(table, 4)).toBe(`\u001b[HNAME${erase}a${erase}and 2 more${erase}\u001b[J`);
  expect(redrawn(table, 1)).toContain("NAME");
});
