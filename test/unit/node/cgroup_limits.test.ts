// Tests the files that set limits in cgroup v1 and v2.
import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { limitFiles, limitProperties, writeLimits } from "../../../src/node/cgroup_limits.ts";
import type { OciResources } from "../../../src/spec/oci_types.ts";

const scratch = mkdtempSync(join(tmpdir(), "isulad-limits-"));
afterAll(() => rmSync(scratch, { recursive: true }));

type Limits = Omit<OciResources, "devices">;
const unlimited: Limits = { memory: { limit: -1n }, cpu: { quota: -1n, period: 50_000n } };

test.each<[string, Limits, string[]]>([
  ["nothing", {}, []],
  ["memory", { memory: { limit: 4096n } }, ["memory.max 4096"]],
  ["the smallest shares", { cpu: { shares: 2n } }, ["cpu.weight 1"]],
  ["the default shares", { cpu: { shares: 1024n } }, ["cpu.weight 100"]],
  ["shares of a tenth of a CPU", { cpu: { shares: 102n } }, ["cpu.weight 17"]],
  ["the largest shares", { cpu: { shares: 262_144n } }, ["cpu.weight 10000"]],
  ["a weight", { unified: { "cpu.weight": "77" } }, ["cpu.weight 77"]],
  ["a quota", { cpu: { quota: 20_000n } }, ["cpu.max 20000 100000"]],
  ["no limits", unlimited, ["memory.max max", "cpu.max max 50000"]],
])("limitFiles() on v2 with %s", (_, limits, files) => {
  const written = limitFiles({ unified: "/c" }, { devices: [], ...limits });
  expect(written.map(([file, value]) => `${file.replace("/c/", "")} ${value}`)).toEqual(files);
});

test.each<[1 | 2, Limits, string]>([
  [2, {}, ""],
  [2, { memory: { limit: 4096n }, cpu: { shares: 2n } }, "MemoryMax=4096 CPUWeight=1"],
  [1, { memory: { limit: 4096n }, cpu: { shares: 2n } }, "MemoryLimit=4096 CPUShares=2"],
  [2, { cpu: { quota: 25_000n } }, "CPUQuota=25.00%"],
  [1, { cpu: { quota: 10_001n, period: 30_000n } }, "CPUQuotaPeriodSec=30000us CPUQuota=33.34%"],
  [2, unlimited, "MemoryMax=infinity CPUQuotaPeriodSec=50000us CPUQuota="],
  [2, { unified: { "cpu.weight": "77" } }, "CPUWeight=77"],
])("limitProperties() on v%d", (version, limits, properties) => {
  expect(limitProperties(version, { devices: [], ...limits }).join(" ")).toBe(properties);
});

test.each<[string, Limits, string[]]>([
  ["nothing", {}, []],
  ["memory", { memory: { limit: 4096n } }, ["/m/memory.limit_in_bytes 4096"]],
  ["shares", { cpu: { shares: 512n } }, ["/c/cpu.shares 512"]],
  [
    "a quota and a period: the old quota is removed first",
    { cpu: { quota: 20_000n, period: 50_000n } },
    ["/c/cpu.cfs_quota_us -1", "/c/cpu.cfs_period_us 50000", "/c/cpu.cfs_quota_us 20000"],
  ],
  ["a quota alone", { cpu: { quota: 20_000n } }, ["/c/cpu.cfs_quota_us 20000"]],
])("limitFiles() on v1 with %s", (_, limits, files) => {
  const paths = { memory: "/m", cpu: "/c" };
  const written = limitFiles(paths, { devices: [], ...limits });
  expect(written.map((pair) => pair.join(" "))).toEqual(files);
  expect(limitFiles({}, { devices: [], ...limits })).toEqual([]); // no such controllers
});

test("writeLimits() writes, and names the file that the kernel does not have", () => {
  writeFileSync(join(scratch, "memory.max"), "max");
  const paths = { unified: scratch };
  writeLimits(paths, { devices: [], memory: { limit: 4096n } });
  expect(readFileSync(join(scratch, "memory.max"), "utf8")).toBe("4096");
  expect(() => writeLimits(paths, { devices: [], cpu: { shares: 2n } })).toThrow(
    `cannot write 1 to ${scratch}/cpu.weight: ENOENT`,
  );
  expect(() => writeLimits(paths, { devices: [], cpu: { shares: 2n } })).toThrow(
    "(is the controller enabled?)",
  );
});
