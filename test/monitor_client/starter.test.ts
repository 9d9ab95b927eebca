// Monitors that end at once: they are started less and less often, and what they tell has a bound.
import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { createLog } from "../../src/base/log.ts";
import { trimMonitorLogFile, monitorLogFile } from "../../src/monitor/monitor_log_file.ts";
import { Starter } from "../../src/monitor_client/starter.ts";
import { until } from "../expect.ts";

const state = mkdtempSync(join(tmpdir(), "isulad-starter-"));
afterAll(() => rmSync(state, { recursive: true, force: true }));

test("one that ends at once is started again after longer and longer pauses", async () => {
  const program = ["sh", "-c", "echo started"];
  const starter = new Starter({
    state,
    program,
    log: createLog({ level: "error", format: "text" }),
  });
  const end = performance.now() + 1500;
  for (starter.begin(); performance.now() < end; await sleep(5)) starter.startIfDue();
  const starts = readFileSync(monitorLogFile(state), "utf8").split("\n").length - 1;
  expect(starts).toBeWithin(2, 8); // at 0, 40, 120, 280, 600 and 1240 ms, or later
});

test("one that is expected is given its time, and another is started when it ends", async () => {
  const starter = new Starter({
    state,
    program: ["sh", "-c", "echo in its place"],
    log: createLog({ level: "error", format: "text" }),
  });
  const starts = () => readFileSync(monitorLogFile(state), "utf8").includes("in its place");
  const expected = Bun.spawn(["sleep", "60"]);
  starter.begin();
  starter.expect(expected.pid);
  for (const end = performance.now() + 500; performance.now() < end; await sleep(5)) {
    starter.startIfDue();
  }
  expect(starts()).toBeFalse();
  expected.kill();
  await until("another is started", () => {
    starter.startIfDue();
    return starts();
  });
});

test("what they tell is cut to its newest whole lines", () => {
  const lines = Array.from({ length: 100_000 }, (_, index) => `line ${index}`);
  writeFileSync(monitorLogFile(state), `${lines.join("\n")}\n`);
  trimMonitorLogFile(state);
  const kept = readFileSync(monitorLogFile(state), "utf8").trimEnd().split("\n");
  expect(kept).toEqual(lines.slice(-kept.length));
  expect(kept.length).toBeWithin(10_000, 30_000);
  trimMonitorLogFile(state);
  expect(readFileSync(monitorLogFile(state), "utf8").trimEnd().split("\n")).toEqual(kept);
});
