// Tests DiskUsages, which measures folders in the background.
import { describe, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "../../../src/base/log.ts";
import { until } from "../../expect.ts";
import { type DiskUsage, DiskUsages, measurer } from "../../../src/stats/disk_usage.ts";

const used: DiskUsage = { atNs: 1n, bytes: 4096n, inodes: 1n };

describe("DiskUsages", () => {
  test("measures blocks and inodes as du does", async () => {
    const folder = mkdtempSync(join(tmpdir(), "isulad-du-"));
    mkdirSync(join(folder, "a b"));
    writeFileSync(join(folder, "a b", "file"), "x".repeat(100_000));
    using usages = new DiskUsages(silentLog(), 10_000);
    const missing = join(folder, "missing");
    const found = await usages.of([folder, missing]);
    const bytes = execFileSync("du", ["-s", "-B1", folder], { encoding: "utf8" });
    expect(found.get(folder)).toMatchObject({ bytes: BigInt(bytes.split("\t")[0]!), inodes: 3n });
    expect(found.has(missing)).toBe(false);
    rmSync(folder, { recursive: true });
  });

  test("adds up the parts of a folder that exist", async () => {
    const folder = mkdtempSync(join(tmpdir(), "isulad-du-"));
    for (const name of ["upper", "volumes", "other"]) {
      mkdirSync(join(folder, name));
      writeFileSync(join(folder, name, "file"), "x".repeat(100_000));
    }
    const parts = (at: string) => ["upper", "missing", "volumes"].map((name) => join(at, name));
    using usages = new DiskUsages(silentLog(), 10_000, measurer(parts));
    const found = await usages.of([folder, join(folder, "missing")]);
    const bytes = (name: string) =>
      BigInt(
        execFileSync("du", ["-s", "-B1", join(folder, name)], { encoding: "utf8" }).split("\t")[0]!,
      );
    expect([...found.keys()]).toEqual([folder]);
    const expected = { bytes: bytes("upper") + bytes("volumes"), inodes: 4n };
    expect(found.get(folder)).toMatchObject(expected);
    rmSync(folder, { recursive: true });
  });

  test("measures new folders in one run, and returns the same figures until the next run", async () => {
    const rounds: string[][] = [];
    using usages = new DiskUsages(silentLog(), 10_000, (folders) => {
      rounds.push(folders);
      return Promise.resolve(new Map(folders.map((folder) => [folder, used])));
    });
    expect(await usages.of([])).toEqual(new Map());
    expect((await usages.of(["/a", "/b"])).size).toBe(2);
    expect((await usages.of(["/a", "/b", "/c"])).size).toBe(3);
    expect((await usages.of(["/c", "/a"])).size).toBe(2);
    expect(rounds).toEqual([["/a", "/b"], ["/c"]]);
  });

  test("does not block its callers, and gives a child fewer folders after a failure", async () => {
    const rounds: number[] = [];
    using usages = new DiskUsages(silentLog(), 10_000, async (folders) => {
      rounds.push(folders.length);
      if (folders.length > 1) throw new Error("too many");
      return Promise.resolve(new Map([[folders[0]!, used]]));
    });
    expect((await usages.of(["/a", "/b", "/c"])).size).toBe(0);
    expect((await usages.of(["/d"])).size).toBe(1);
    expect(rounds).toEqual([3, 1]);
    using stuck = new DiskUsages(silentLog(), 10_000, () => new Promise(() => {}));
    expect((await stuck.of(["/a"])).size).toBe(0);
  });

  test("measures again after each pause", async () => {
    const counts = { often: 0, seldom: 0 };
    const counting = (name: keyof typeof counts) => () => {
      counts[name]++;
      return Promise.resolve(new Map([["/a", used]]));
    };
    using often = new DiskUsages(silentLog(), 5, counting("often"));
    using seldom = new DiskUsages(silentLog(), 60_000, counting("seldom"));
    await Promise.all([often.of(["/a"]), seldom.of(["/a"])]);
    await until("the shorter pause has passed five times", () => counts.often >= 5);
    expect(counts.seldom).toBe(1);
  });
});
