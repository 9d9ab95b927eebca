// Tests the usage and the pressure of cgroup v1 and v2.
import { afterAll, describe, expect, test } from "bun:test";
import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { CgroupPaths } from "../../../src/node/cgroup.ts";
import { parsePressure, readUsage } from "../../../src/stats/cgroup_usage.ts";

const golden = join(import.meta.dirname, "../../golden");
const scratch = mkdtempSync(join(tmpdir(), "isulad-stats-"));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

/** Returns paths with all controllers in one folder. */
function v1Paths(folder: string): CgroupPaths {
  const names = ["cpu", "cpuacct", "memory", "pids", "freezer", "hybrid"];
  return Object.fromEntries(names.map((name) => [name, folder]));
}

const v1 = () => v1Paths(join(golden, "cgroup_v1"));
const v2 = () => ({ unified: join(golden, "cgroup_v2") });
const nothing = { avg10: 0, avg60: 0, avg300: 0, totalNs: 0n };
const some = { avg10: 1.5, avg60: 0.25, avg300: 0.05, totalNs: 22_408_000n };

describe("readUsage()", () => {
  test("reads a v1 cgroup including those below, and a hybrid host's pressure", () => {
    expect(readUsage(v1(), { processes: true })).toEqual({
      atNs: expect.any(BigInt),
      cpuNs: 13_123_632n,
      processes: 2n,
      memory: {
        usage: 3_899_392n,
        workingSet: 3_899_392n - 3_145_728n,
        rss: 53_248n,
        cache: 4_194_304n,
        mapped: 4096n,
        activeFile: 1_048_576n,
        inactiveFile: 3_145_728n,
        pageFaults: 1162n,
        majorPageFaults: 3n,
        limit: 67_108_864n,
        swap: 8192n,
        swapLimit: 67_108_864n,
      },
      cpuPressure: { some, full: { ...nothing, totalNs: 17_948_000n } },
      memoryPressure: { some: nothing, full: nothing },
      ioPressure: { some: nothing, full: nothing },
    });
  });

  test("reads a v2 cgroup; figures that the kernel lacks are unset", () => {
    expect(readUsage(v2())).toEqual({
      atNs: expect.any(BigInt),
      cpuNs: 12_500_000_000n,
      processes: undefined,
      memory: {
        usage: 14_000_128n,
        workingSet: 14_000_128n - 11_239_424n,
        rss: 1_204_224n,
        cache: 12_288_000n,
        mapped: 8192n,
        activeFile: 1_048_576n,
        inactiveFile: 11_239_424n,
        pageFaults: 4711n,
        majorPageFaults: 17n,
        limit: 67_108_864n,
        swap: 4096n,
        swapLimit: undefined,
      },
      cpuPressure: { some },
      memoryPressure: { some: nothing, full: nothing },
      ioPressure: undefined,
    });
  });

  test("returns nothing for a removed cgroup", () => {
    expect(readUsage({ unified: join(scratch, "gone") })).toBeUndefined();
    expect(readUsage(v1Paths(join(scratch, "gone")))).toBeUndefined();
  });

  test("never reports a negative working set, although the counters are not read atomically", () => {
    const folder = join(scratch, "inactive");
    cpSync(join(golden, "cgroup_v2"), folder, { recursive: true });
    writeFileSync(join(folder, "memory.current"), "4096\n");
    expect(readUsage({ unified: folder })!.memory!.workingSet).toBe(0n);
  });
});

test("parsePressure() returns nothing for other texts", () => {
  expect(parsePressure(undefined)).toBeUndefined();
  expect(parsePressure("")).toBeUndefined();
  expect(parsePressure("some avg10=x")).toBeUndefined();
});
