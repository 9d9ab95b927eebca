// Tests the threads that write logs while their disk is full: they rest, and all that was written is in the log when
// there is room.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { constants, mkdtempSync, readFileSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { LogWorkers } from "../../src/monitor/log_workers.ts";
import { Descriptor } from "../../src/sys/descriptor.ts";
import { mkfifo } from "../../src/sys/path.ts";
import { until } from "../expect.ts";

const folder = mkdtempSync(join(tmpdir(), "isulad-full-"));
const disk = join(folder, "disk");
const filler = join(disk, "filler");
const workers = new LogWorkers(
  (error) => {
    throw error;
  },
  { lingerMs: 10 },
);
const containers: { id: string; fifo: Descriptor }[] = [];
const line = `${"x".repeat(999)}\n`;

beforeAll(async () => {
  execFileSync("mkdir", [disk]);
  execFileSync("mount", ["-t", "tmpfs", "-o", "size=1m", "tmpfs", disk]);
  for (let serial = 0; serial < 30; serial++) {
    const path = join(folder, `${serial}.fifo`);
    mkfifo(path, 0o600);
    const fifo = Descriptor.open(path, constants.O_RDWR);
    const stdout = Descriptor.open(path, constants.O_RDONLY | constants.O_NONBLOCK).release();
    const id = String(serial);
    await workers.log({ id, path: logOf(id), stdout, terminal: false, hasReturns: false });
    containers.push({ id, fifo });
  }
});

afterAll(async () => {
  rmSync(filler, { force: true });
  for (const { id, fifo } of containers) {
    await workers.end(id);
    fifo.close();
  }
  execFileSync("umount", ["-l", disk]);
  rmSync(folder, { recursive: true });
});

const logOf = (id: string) => join(disk, `${id}.log`);
const linesOf = (id: string) => readFileSync(logOf(id), "utf8").split("\n").length - 1;
/** Calls of write(2) by this process, also those that failed. */
const writes = () => Number(/syscw: (\d+)/.exec(readFileSync("/proc/self/io", "utf8"))![1]);

test("30 logs on a full disk take no time, and nothing is lost when there is room", async () => {
  writeFileSync(filler, "");
  execFileSync("sh", ["-c", `cat /dev/zero > ${filler} 2>/dev/null || true`]);
  for (const { fifo } of containers)
    for (let count = 0; count < 20; count++) writeSync(fifo.fd, line);
  await sleep(200);
  const before = writes();
  await sleep(1_500);
  // It was 10,000 a second.
  expect(writes() - before).toBeLessThan(50);
  rmSync(filler);
  await until("all lines are there", () => containers.every(({ id }) => linesOf(id) === 20));
});

test("containers that write for ever go on beside a read-only disk, and their thread hardly works", async () => {
  const small = join(folder, "read-only");
  execFileSync("mkdir", [small]);
  execFileSync("mount", ["-t", "tmpfs", "-o", "ro", "tmpfs", small]);
  using _ = { [Symbol.dispose]: () => void execFileSync("umount", ["-l", small]) };
  const writers: ChildProcess[] = [];
  const fifos: Descriptor[] = [];
  for (let serial = 0; serial < 10; serial++) {
    const path = join(folder, `chatty-${serial}.fifo`);
    mkfifo(path, 0o600);
    const fifo = Descriptor.open(path, constants.O_RDWR);
    fifos.push(fifo);
    const stdout = Descriptor.open(path, constants.O_RDONLY | constants.O_NONBLOCK).release();
    const log = { path: join(small, `${serial}.log`), stdout, terminal: false, hasReturns: false };
    workers.resume({ id: `chatty-${serial}`, ...log });
    writers.push(spawn("yes", [line.trim()], { stdio: ["ignore", fifo.fd, "ignore"] }));
  }
  const written = () =>
    writers.map(({ pid }) => {
      return Number(/wchar: (\d+)/.exec(readFileSync(`/proc/${pid}/io`, "utf8"))![1]);
    });
  await until("all have written ten pipes", () => written().every((bytes) => bytes > 640 << 10));
  const begin = performance.now();
  const cpu = process.cpuUsage();
  await sleep(1_500);
  const { user, system } = process.cpuUsage(cpu);
  // In a quiet process it is about 2 % with 60 of them; this one also runs the tests.
  expect((user + system) / 1_000).toBeLessThan((performance.now() - begin) / 10);
  for (const writer of writers) writer.kill();
  for (let serial = 0; serial < 10; serial++) {
    expect(await workers.end(`chatty-${serial}`)).toBeGreaterThan(640 << 10);
  }
  for (const fifo of fifos) fifo.close();
});
