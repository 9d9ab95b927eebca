// Tests the probe of the limits that the host supports, for cgroup v1 and v2.
import { afterAll, expect, test } from "bun:test";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { readHostInfo } from "../../../src/node/host_probe.ts";

const scratch = mkdtempSync(join(tmpdir(), "isulad-host-"));
afterAll(() => rmSync(scratch, { recursive: true }));

function folder(name: string, files: Record<string, string>): string {
  const path = join(scratch, name);
  mkdirSync(path);
  for (const [file, text] of Object.entries(files)) writeFileSync(join(path, file), text);
  return path;
}

const pages = "/sys/kernel/mm/hugepages";
const pageSizes = existsSync(pages) ? readdirSync(pages).length : 0;

test("cgroup v1 limits swap only with swap accounting, and huge pages only with hugetlb", () => {
  const plain = folder("memory", {});
  const accounting = folder("accounting", { "memory.memsw.limit_in_bytes": "0" });
  const without = readHostInfo({ version: 1, roots: { memory: plain } }, {});
  expect(without).toMatchObject({ cgroupVersion: 1, swapLimit: false, hugepageSizes: [] });
  const roots = { memory: accounting, hugetlb: plain };
  const all = readHostInfo({ version: 1, roots }, { apparmor: {} });
  expect(all).toMatchObject({ swapLimit: true, apparmor: {} });
  expect(all.hugepageSizes).toHaveLength(pageSizes);
  for (const size of all.hugepageSizes) expect(size).toMatch(/^\d+[KMG]B$/);
});

test("cgroup v2 limits huge pages only with the hugetlb controller", () => {
  const with2 = folder("v2", { "cgroup.controllers": "cpu hugetlb\n" });
  const without2 = folder("v2-without", { "cgroup.controllers": "cpu\n" });
  const sizes = (unified: string) =>
    readHostInfo({ version: 2, roots: { unified } }, {}).hugepageSizes.length;
  expect([sizes(with2), sizes(without2)]).toEqual([pageSizes, 0]);
  expect(readHostInfo({ version: 2, roots: { unified: with2 } }, {}).cgroupOptions).toEqual([]);
});

test("cgroup v2 limits swap only if its cgroups have memory.swap.max, or there is none to tell", () => {
  const none = folder("v2-root", { "cgroup.controllers": "memory\n", "memory.stat": "" });
  const limits = () => readHostInfo({ version: 2, roots: { unified: none } }, {}).swapLimit;
  expect(limits()).toBe(existsSync("/proc/swaps"));
  folder("v2-root/init.scope", {});
  folder("v2-root/system.slice", { "memory.max": "max" });
  expect(limits()).toBe(false);
  folder("v2-root/user.slice", { "memory.max": "max", "memory.swap.max": "max" });
  expect(limits()).toBe(true);
});
