// Tests the detailed figures of cgroup v1 and v2.
import { describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { readDetails } from "../../../src/stats/cgroup_details.ts";

const golden = join(import.meta.dirname, "../../golden");

describe("readDetails()", () => {
  test("reads a v1 cgroup", () => {
    const folder = join(golden, "cgroup_v1");
    const names = ["cpu", "cpuacct", "memory", "pids", "blkio", "hugetlb"];
    const paths = Object.fromEntries(names.map((name) => [name, folder]));
    const disk = { major: 8, minor: 0 };
    const none = { ...disk, bytes: 0n, requests: 0n };
    expect(readDetails(paths)).toEqual({
      cpu: {
        userNs: 4_000_000_000n,
        systemNs: 8_000_000_000n,
        periods: 12n,
        throttledPeriods: 5n,
        throttledNs: 3_000_000_000n,
        shares: 1024n,
        periodUs: 100_000n,
        quotaUs: undefined,
      },
      memory: {
        maxUsage: 5_058_560n,
        kernel: 262_144n,
        failures: 2n,
        limit: 67_108_864n,
        reservation: undefined,
        swapLimit: 134_217_728n,
      },
      oomKills: 4n,
      tasks: 3n,
      tasksMax: undefined,
      io: [
        { ...disk, operation: "Read", bytes: 4096n, requests: 1n },
        { ...disk, operation: "Write", bytes: 8192n, requests: 2n },
        { ...disk, operation: "Sync", bytes: 12_288n, requests: 3n },
        { ...none, operation: "Async" },
        { ...none, operation: "Discard" },
      ],
      hugepages: [{ size: "2MB", usage: 2_097_152n, maxUsage: 4_194_304n }],
    });
  });

  test("reads a v2 cgroup; a disk without counters is left out", () => {
    const disk = { major: 8, minor: 0 };
    expect(readDetails({ unified: join(golden, "cgroup_v2") })).toEqual({
      cpu: {
        userNs: 4_500_000_000n,
        systemNs: 8_000_000_000n,
        periods: 12n,
        throttledPeriods: 5n,
        throttledNs: 3_000_000_000n,
        shares: 2046n,
        periodUs: 100_000n,
        quotaUs: 20_000n,
      },
      memory: {
        maxUsage: 15_000_000n,
        kernel: 655_360n,
        failures: 7n,
        limit: 67_108_864n,
        reservation: 8_388_608n,
        swapLimit: undefined,
      },
      oomKills: 1n,
      tasks: 3n,
      tasksMax: 100n,
      io: [
        { ...disk, operation: "Read", bytes: 4096n, requests: 1n },
        { ...disk, operation: "Write", bytes: 8192n, requests: 2n },
        { ...disk, operation: "Discard", bytes: 0n, requests: 0n },
      ],
      hugepages: [{ size: "2MB", usage: 2_097_152n, maxUsage: undefined }],
    });
  });

  test.each(["usage_in_bytes", "current"])("reads reservations of huge pages beside %s", (file) => {
    const folder = mkdtempSync(join(tmpdir(), "isulad-details-"));
    try {
      const write = (name: string, bytes: number) =>
        writeFileSync(join(folder, `hugetlb.${name}`), `${bytes}\n`);
      write(`2MB.${file}`, 2 << 20);
      write(`2MB.rsvd.${file}`, 6 << 20);
      write(`1GB.${file}`, 1 << 30);
      const isV1 = file === "usage_in_bytes";
      if (isV1) {
        write("2MB.max_usage_in_bytes", 4 << 20);
        write("2MB.rsvd.max_usage_in_bytes", 8 << 20);
      }
      const { hugepages } = readDetails(isV1 ? { hugetlb: folder } : { unified: folder });
      const maxUsage = isV1 ? BigInt(8 << 20) : undefined;
      expect(hugepages.toSorted((a, b) => (a.size < b.size ? -1 : 1))).toEqual([
        { size: "1GB", usage: 1n << 30n, maxUsage: undefined },
        { size: "2MB", usage: BigInt(6 << 20), maxUsage },
      ]);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  test("returns nothing for a removed cgroup", () => {
    expect(readDetails({ unified: join(golden, "none") })).toMatchObject({ io: [], hugepages: [] });
    expect(readDetails({ memory: join(golden, "none") })).toMatchObject({ io: [], hugepages: [] });
  });
});
