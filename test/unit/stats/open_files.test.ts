// Tests the counts of open files and the networks of processes.
import { expect, test } from "bun:test";
import { connect, createServer, type AddressInfo } from "node:net";
import { countOpenFiles } from "../../../src/stats/open_files.ts";
import { softLimit } from "../../../src/sys/process.ts";
import { readNetworks } from "../../../src/stats/network_stats.ts";
import { statSync } from "node:fs";

const endedPid = 2 ** 22 + 1; // above the kernel's pid_max

test("countOpenFiles() counts sockets among the descriptors, and skips ended processes", async () => {
  const before = (await countOpenFiles([process.pid]))!;
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", () => resolve()));
  const socket = connect((server.address() as AddressInfo).port, "127.0.0.1");
  await new Promise((resolve) => socket.once("connect", resolve));
  const after = (await countOpenFiles([process.pid, endedPid]))!;
  expect(after.sockets - before.sockets).toBeGreaterThanOrEqual(2n);
  expect(after.files).toBeGreaterThan(after.sockets);
  socket.destroy();
  server.close();
});

test("softLimit() reads the limit of open files, and nothing of an ended process", () => {
  expect(softLimit(process.pid, "open files")).toBeGreaterThan(0);
  expect(softLimit(endedPid, "open files")).toBeUndefined();
});

test("readNetworks() reads through a process in the namespace", async () => {
  const { ino } = statSync("/proc/self/ns/net", { bigint: true });
  const problems: string[] = [];
  const pod = { id: "p", path: "/none", inode: ino, pids: [endedPid, process.pid] };
  const found = await readNetworks([pod], (problem) => problems.push(problem));
  expect([found.has("p"), problems]).toEqual([true, []]);
  const removed = { ...pod, pids: [endedPid] };
  expect((await readNetworks([removed], (problem) => problems.push(problem))).size).toBe(0);
});
