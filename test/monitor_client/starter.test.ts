// Tests monitors that end at once: the daemon starts them at growing intervals, and bounds their log file.
import { afterAll, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { createLog } from "../../src/base/log.ts";
import { trimMonitorLogFile, monitorLogFile } from "../../src/monitor/monitor_log_file.ts";
import {
  search,
  startIfDue,
  upgrade,
  type Searching,
} from "../../src/monitor_client/connection.ts";
import { monitorArgs } from "../../src/monitor/protocol.ts";
import { Starter } from "../../src/monitor_client/starter.ts";
import { childrenOf, hasEnded, kill } from "../../src/sys/process.ts";
import { until } from "../expect.ts";

const state = mkdtempSync(join(tmpdir(), "isulad-starter-"));
afterAll(() => rmSync(state, { recursive: true, force: true }));

function starterOf(script: string): Starter {
  const log = createLog({ level: "error", format: "text" });
  return new Starter({ state, program: ["sh", "-c", script], log });
}

function step(searching: Searching, starter: Starter): Searching {
  return startIfDue(searching, performance.now(), () => starter.start());
}

test("a monitor that ends at once is started at growing intervals", async () => {
  const starter = starterOf("echo started");
  const end = performance.now() + 1500;
  let searching: Searching = search(performance.now());
  for (; performance.now() < end; await sleep(5)) searching = step(searching, starter);
  const starts = readFileSync(monitorLogFile(state), "utf8").split("\n").length - 1;
  expect(starts).toBeWithin(2, 8); // at 0, 40, 120, 280, 600 and 1240 ms, or later
});

test("a monitor that is being upgraded is waited for, and replaced when it ends", async () => {
  const starter = starterOf("echo in its place");
  const starts = () => readFileSync(monitorLogFile(state), "utf8").includes("in its place");
  const upgraded = Bun.spawn(["sleep", "60"]);
  const now = performance.now();
  let searching: Searching = upgrade(search(now), now, starter.endOf(upgraded.pid));
  for (const end = now + 500; performance.now() < end; await sleep(5)) {
    searching = step(searching, starter);
  }
  expect(starts()).toBeFalse();
  upgraded.kill();
  await until("another is started", () => {
    searching = step(searching, starter);
    return starts();
  });
});

test("of the monitors that do not serve, none is a child that does not run its own program yet", async () => {
  const fifo = join(state, "fifo");
  execFileSync("mkfifo", [fifo]);
  // A shell in the place of the executable: between brackets it runs a copy of itself.
  const argv = ["sh", "-c", `(read line <${fifo}); true`, ...monitorArgs(state)];
  const [serving, other] = [Bun.spawn(argv), Bun.spawn(argv)];
  const childOf = async ({ pid }: { pid: number }) => {
    await until("it has a child", () => childrenOf(pid).length === 1);
    return childrenOf(pid)[0]!;
  };
  const children = [await childOf(serving), await childOf(other)];
  const starter = starterOf(`read line <${fifo}`);
  starter.start();
  await starter.killOthers(serving.pid);
  await until("the other one has ended", () => other.signalCode === "SIGKILL");
  expect([...children, serving.pid].map(hasEnded)).toEqual([false, false, false]);
  for (const pid of [serving.pid, ...children]) kill(pid);
  await starter.oust("all");
});

test("the monitors' log file is cut to its newest whole lines", () => {
  const lines = Array.from({ length: 100_000 }, (_, index) => `line ${index}`);
  writeFileSync(monitorLogFile(state), `${lines.join("\n")}\n`);
  trimMonitorLogFile(state);
  const kept = readFileSync(monitorLogFile(state), "utf8").trimEnd().split("\n");
  expect(kept).toEqual(lines.slice(-kept.length));
  expect(kept.length).toBeWithin(10_000, 30_000);
  trimMonitorLogFile(state);
  expect(readFileSync(monitorLogFile(state), "utf8").trimEnd().split("\n")).toEqual(kept);
});
