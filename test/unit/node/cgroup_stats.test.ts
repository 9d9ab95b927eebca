import { afterAll, describe, expect, test } from "bun:test";
import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { CgroupPaths } from "../../../src/node/cgroup.ts";
import { limited, parseKeyed, parsePressure, readUsage } from "../../../src/node/cgroup_stats.ts";
import { Sampler } from "../../../src/stats/sampler.ts";

const golden = join(import.meta.dirname, "../../golden");
const scratch = mkdtempSync(join(tmpdir(), "isulad-stats-"));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

/** A folder that the kernel would fill, with all controllers in one. */
function v1Paths(folder: string): CgroupPaths {
  const names = ["cpu", "cpuacct", "memory", "pids", "freezer", "hybrid"];
  return Object.fromEntries(names.map((name) => [name, folder]));
}

const v1 = () => v1Paths(join(golden, "cgroup_v1"));
const v2 = () => ({ unified: join(golden, "cgroup_v2") });
const nothing = { avg10: 0, avg60: 0, avg300: 0, totalNs: 0n };
const some = { avg10: 1.5, avg60: 0.25, avg300: 0.05, totalNs: 22_408_000n };

describe("readUsage()", () => {
  test("reads a v1 cgroup with those below it, and a hybrid host's pressure", () => {
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

  test("reads a v2 cgroup; what a kernel does not have is unset", () => {
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

  test("knows nothing of a cgroup that is gone", () => {
    expect(readUsage({ unified: join(scratch, "gone") })).toBeUndefined();
    expect(readUsage(v1Paths(join(scratch, "gone")))).toBeUndefined();
  });

  test("never tells a working set below 0: the counters are read one after another", () => {
    const folder = join(scratch, "inactive");
    cpSync(join(golden, "cgroup_v2"), folder, { recursive: true });
    writeFileSync(join(folder, "memory.current"), "4096\n");
    expect(readUsage({ unified: folder })!.memory!.workingSet).toBe(0n);
  });
});

describe("the parsers", () => {
  test("parseKeyed() finds whole keys and numbers only", () => {
    const stat = parseKeyed("a 1\nnot_b 2\nb 3\nc max\nd -4\ne 18446744073709551615");
    expect(["a", "b", "c", "d", "e", "not"].map(stat)).toEqual([
      1n,
      3n,
      undefined,
      undefined,
      18_446_744_073_709_551_615n,
      undefined,
    ]);
  });

  test("parsePressure() takes nothing from what is no pressure file", () => {
    expect(parsePressure(undefined)).toBeUndefined();
    expect(parsePressure("")).toBeUndefined();
    expect(parsePressure("some avg10=x")).toBeUndefined();
  });

  test("limited() knows v1's largest number as no limit", () => {
    expect(limited(9_223_372_036_854_771_712n)).toBeUndefined();
    expect(limited(4096n)).toBe(4096n);
  });
});

describe("Sampler", () => {
  function cgroup(name: string) {
    const folder = join(scratch, name);
    cpSync(join(golden, "cgroup_v2"), folder, { recursive: true });
    const used = (usec: number) => writeFileSync(join(folder, "cpu.stat"), `usage_usec ${usec}\n`);
    return { id: name, paths: { unified: folder }, used };
  }

  test("reads once a second, and tells the rate between two readings", async () => {
    const one = cgroup("rate");
    using sampler = new Sampler(() => [one]);
    one.used(1_000_000);
    const first = (await sampler.sample([one])).get("rate")!;
    expect(first.nanoCores).toBeUndefined();
    one.used(1_600_000);
    expect((await sampler.sample([one])).get("rate")).toBe(first);
    await sleep(1_050);
    const second = (await sampler.sample([one])).get("rate")!;
    expect(second.cpuNs).toBe(1_600_000_000n);
    // 600 ms of CPU in a second and something, however busy this machine is
    expect(second.nanoCores).toBeGreaterThan(60_000_000n);
    expect(second.nanoCores).toBeLessThan(600_000_000n);
  });

  test("has no rate for a cgroup that began anew, and no figures of one that is gone", async () => {
    const one = cgroup("anew");
    const gone = { id: "gone", paths: { unified: join(scratch, "none") } };
    using sampler = new Sampler(() => [one, gone]);
    one.used(1_000_000);
    await sampler.sample([one]);
    one.used(5);
    await sleep(1_050);
    const samples = await sampler.sample([one, gone]);
    expect(samples.get("anew")).toMatchObject({ cpuNs: 5000n, nanoCores: undefined });
    expect(samples.has("gone")).toBe(false);
  });
});
