// Tests the reading of the kernel's budgets from files as a kernel writes them.
import { afterAll, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { kernelBudgets } from "../../../src/sys/kernel_budgets.ts";

const root = mkdtempSync(join(tmpdir(), "isulad-budgets-"));
afterAll(() => rmSync(root, { recursive: true }));

function write(path: string, text: string): void {
  mkdirSync(dirname(join(root, path)), { recursive: true });
  writeFileSync(join(root, path), text);
}

test("each budget has its use and its limit; what this kernel does not have is left out", () => {
  expect(kernelBudgets(root)).toEqual([]);
  write("/proc/loadavg", "24.50 26.96 24.60 23/369 27810\n");
  write("/proc/sys/kernel/pid_max", "32768\n");
  write("/proc/sys/kernel/threads-max", "192730\n");
  write("/proc/sys/fs/file-nr", "1748\t0\t2466170\n");
  write("/proc/sys/fs/file-max", "2466170\n");
  write(
    "/proc/key-users",
    "    0:    15 14/14 9/1000000 460/25000000\n 1000:     2 2/2 3/200 37/20000\n",
  );
  write("/proc/sys/net/netfilter/nf_conntrack_count", "12\n");
  write("/proc/sys/net/netfilter/nf_conntrack_max", "262144\n");
  expect(kernelBudgets(root)).toEqual([
    { budget: "tasks", used: 369, limit: 32_768, sysctl: "kernel.pid_max" },
    { budget: "files", used: 1_748, limit: 2_466_170, sysctl: "fs.file-max" },
    { budget: "keys", used: 9, limit: 1_000_000, sysctl: "kernel.keys.root_maxkeys" },
    { budget: "connections", used: 12, limit: 262_144, sysctl: "net.netfilter.nf_conntrack_max" },
  ]);
});

test("this kernel has tasks and files", () => {
  const used = new Map(kernelBudgets().map((one) => [one.budget, one.used]));
  expect(used.get("tasks")).toBeGreaterThan(1);
  expect(used.get("files")).toBeGreaterThan(1);
});
