// Tests the CRI messages of stats.
import { expect, test } from "bun:test";
import Long from "long";
import {
  cgroupStats,
  containerOnlyStats,
  filesystemUsage,
  networkUsage,
} from "../../../src/stats/stats_messages.ts";
import type { MemoryUsage } from "../../../src/stats/cgroup_usage.ts";
import type { InterfaceUsage } from "../../../src/stats/network_stats.ts";

/** Makes protobuf's 64-bit numbers comparable. */
function plain(message: unknown): unknown {
  const text = JSON.stringify(message, (_, value: unknown) =>
    Long.isLong(value) ? value.toString() : value,
  );
  return JSON.parse(text) as unknown;
}

const memory: MemoryUsage = {
  usage: 100n,
  workingSet: 80n,
  rss: 50n,
  cache: 20n,
  mapped: 1n,
  activeFile: 2n,
  inactiveFile: 20n,
  pageFaults: 7n,
  majorPageFaults: 3n,
};

test("cgroupStats() leaves unknown figures unset", () => {
  expect(plain(cgroupStats({ atNs: 1n }))).toEqual({});
  const { cpu } = plain(cgroupStats({ atNs: 1n, cpuNs: 5n })) as { cpu: object };
  expect(cpu).toEqual({ timestamp: "1", usage_core_nano_seconds: { value: "5" } });
});

test.each<[string, bigint | undefined, { value: string } | undefined]>([
  ["the limit minus the working set", 200n, { value: "120" }],
  ["0 over the limit", 70n, { value: "0" }],
  ["unset without a limit", undefined, undefined],
])("cgroupStats(): available memory is %s", (_, limit, available) => {
  const stats = plain(cgroupStats({ atNs: 1n, memory: { ...memory, limit } })) as {
    memory: { available_bytes?: object; rss_bytes: object };
  };
  expect(stats.memory.available_bytes).toEqual(available);
  expect(stats.memory.rss_bytes).toEqual({ value: "50" });
});

test("cgroupStats() reports pressure, each kind as far as it is known", () => {
  const some = { avg10: 1, avg60: 2, avg300: 3, totalNs: 4n };
  const { io } = plain(cgroupStats({ atNs: 1n, ioPressure: { some } })) as { io: object };
  expect(io).toEqual({
    timestamp: "1",
    psi: { Some: { Total: "4", Avg10: 1, Avg60: 2, Avg300: 3 } },
  });
});

test("containerOnlyStats() reports swap and layer only if known", () => {
  expect(plain(containerOnlyStats({ atNs: 1n, memory }, undefined, "/g"))).toEqual({});
  const swapping = { atNs: 1n, memory: { ...memory, swap: 5n, swapLimit: 8n } };
  const layer = { atNs: 2n, bytes: 4096n, inodes: 3n };
  expect(plain(containerOnlyStats(swapping, layer, "/g"))).toEqual({
    swap: {
      timestamp: "1",
      swap_available_bytes: { value: "3" },
      swap_usage_bytes: { value: "5" },
    },
    writable_layer: {
      timestamp: "2",
      fs_id: { mountpoint: "/g" },
      used_bytes: { value: "4096" },
      inodes_used: { value: "3" },
    },
  });
  const unlimited = { atNs: 1n, memory: { ...memory, swap: 5n } };
  expect(plain(containerOnlyStats(unlimited, undefined, "/g"))).toEqual({
    swap: { timestamp: "1", swap_usage_bytes: { value: "5" } },
  });
  expect(plain(filesystemUsage({ ...layer, inodes: undefined }, "/g"))).not.toHaveProperty(
    "inodes_used",
  );
});

test.each([
  [["net1", "eth0", "eth1"], "eth0", ["net1", "eth1"]],
  [["net1", "net2"], "net1", ["net2"]],
])("networkUsage() of %p has %p as the default interface", (names, first, others) => {
  const counters = { rxBytes: 1n, rxPackets: 1n, rxErrors: 1n, rxDropped: 1n };
  const sent = { txBytes: 1n, txPackets: 1n, txErrors: 1n, txDropped: 1n };
  const interfaces: InterfaceUsage[] = names.map((name) => ({ name, ...counters, ...sent }));
  const usage = networkUsage(1n, interfaces)!;
  expect(usage.default_interface!.name as string).toBe(first);
  expect(usage.interfaces!.map(({ name }) => name)).toEqual(others);
});

test("networkUsage() of no interface is none, as a kubelet expects a default interface in it", () => {
  expect(networkUsage(1n, [])).toBeUndefined();
});
