// Tests that a process's file pages are unmapped, and that it goes on.
import { expect, test } from "bun:test";
import { readFileSync, readlinkSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { sectionOf } from "../../src/sys/elf.ts";
import {
  isUnwritten,
  modulesOf,
  readOnlyParts,
  unmapProgram,
} from "../../src/sys/program_pages.ts";
import { executable, startDaemon } from "../harness.ts";

const program = readlinkSync("/proc/self/exe");

test("what is never written to is the code of a program, and the constants at its begin", () => {
  const maps = `00200000-01a39000 r--p 00000000 fe:00 53     /opt/a program
01a39000-06848000 r-xp 01838000 fe:00 53                   /opt/a program
0684a000-0685f000 rw-p 06641000 fe:00 53                   /opt/a program
0685f000-06867000 r--p 06656000 fe:00 53                   /opt/a program
7f1c2c000000-7f1c2c021000 rwxp 00000000 00:00 0
7f1c30000000-7f1c30155000 r-xp 00026000 fe:00 9             /usr/lib/libc.so.6
`;
  const [constants, code] = [0x200000n, 0x1a39000n];
  expect(readOnlyParts(maps, "/opt/a program")).toEqual([
    { address: constants, bytes: 0x1a39000n - constants },
    { address: code, bytes: 0x6848000n - code },
  ]);
});

/** KiB of this program's code and constants that are mapped now. */
function mappedKib(): number {
  const all = readFileSync("/proc/self/smaps", "utf8").split(/^(?=[0-9a-f]+-[0-9a-f]+ )/m);
  const parts = all.filter((one) => {
    const line = one.split("\n")[0]!;
    return / (r-xp|r--p 00000000) .*\/\S+$/.test(line) && line.endsWith(program);
  });
  expect(parts.length).toBe(2);
  return parts.reduce((sum, one) => sum + Number(/^Rss: +(\d+) kB/m.exec(one)![1]), 0);
}

test("pages that are not used are not mapped afterwards", () => {
  const before = mappedKib();
  unmapProgram();
  const after = mappedKib();
  expect(before).toBeGreaterThan(10_000);
  expect(after).toBeLessThan(before * 0.8);
});

test("a written page of a range is found", () => {
  const bytes = 1n << 16n;
  const mine = new Uint8Array(1 << 20).fill(1); // of no file
  const heap = /^(\w+)-\w+ rw-p 00000000 00:00 0 *$/gm;
  const maps = readFileSync("/proc/self/maps", "utf8");
  const found = [...maps.matchAll(heap)].map((one) => BigInt(`0x${one[1]}`));
  expect(found.some((address) => !isUnwritten("self", { address, bytes }))).toBe(true);
  expect(mine[0]).toBe(1);
});

test("a file that is no executable, and one without the section, have none", () => {
  expect(sectionOf(import.meta.filename, ".text")).toBeUndefined();
  expect(sectionOf(program, ".none")).toBeUndefined();
  const stripped = join(tmpdir(), `isulad-stripped-${process.pid}`);
  writeFileSync(stripped, readFileSync("/bin/busybox").subarray(0, 4_096)); // its section table is at the end
  expect(sectionOf(stripped, ".text")).toBeUndefined();
  rmSync(stripped);
  expect(sectionOf(program, ".text")!.bytes).toBeGreaterThan(1 << 20);
});

test("daemon and monitor have their modules in whole pages, and write to none of them", async () => {
  expect(sectionOf(executable, ".bun")!.bytes).toBeGreaterThan(1 << 20);
  await using daemon = await startDaemon();
  const pod = daemon.podConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, "while :; do echo line; sleep 0.1; done");
  for (let count = 0; count < 5; count++) {
    expect((await daemon.exec(id, "echo seen")).stdout).toBe("seen\n");
    const { client } = daemon;
    await Promise.all([client.ListContainerStats({}), client.ListImages({}), client.Status({})]);
  }
  await daemon.removePod(podId);
  for (const pid of daemon.scope.pids()) {
    const modules = modulesOf(pid)!;
    expect(modules.bytes).toBeGreaterThan(1 << 20);
    expect(isUnwritten(pid, modules)).toBe(true);
  }
  expect(modulesOf(process.pid)?.bytes ?? 0n).toBeLessThan(1 << 20); // this one is not compiled
});
