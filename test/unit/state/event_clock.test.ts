// Tests that the clock of events always rises, also when the wall clock is set back and after a restart.
import { afterEach, beforeEach, expect, setSystemTime, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { EventClock } from "../../../src/state/event_clock.ts";
import { until } from "../../expect.ts";

let dir = "";
let problems: string[] = [];
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "event-clock-"));
  problems = [];
});
afterEach(() => {
  setSystemTime();
  rmSync(dir, { recursive: true });
});

const open = (file = join(dir, "clock")) =>
  new EventClock(file, (problem) => void problems.push(problem));

/** Each later than the one before. */
function rising(times: bigint[]): boolean {
  return times.every((time, index) => index === 0 || time > times[index - 1]!);
}

test("next rises with every call, and follows the wall clock", () => {
  const clock = open();
  const times = Array.from({ length: 1000 }, () => clock.next());
  expect(rising(times)).toBe(true);
  expect(Math.abs(Number(times[0]! / 1_000_000n) - Date.now())).toBeLessThan(60_000);
});

test("next rises when the wall clock is set back", () => {
  const clock = open();
  const before = clock.next();
  setSystemTime(new Date(Date.now() - 3_600_000));
  expect(rising([before, clock.next(), clock.next()])).toBe(true);
});

test("a clock that is opened again goes on behind the last one, also with the wall clock set back", () => {
  const times: bigint[] = [];
  for (let restart = 0; restart < 5; restart++) {
    const clock = open();
    for (let call = 0; call < 10; call++) times.push(clock.next());
    setSystemTime(new Date(Date.now() - 60_000));
  }
  expect(rising(times)).toBe(true);
  expect(problems).toEqual([]);
});

test("a file that is no number, or cannot be written, costs nothing but the memory of a restart", async () => {
  writeFileSync(join(dir, "clock"), "half");
  expect(rising([open().next(), open().next()])).toBe(true);
  expect(readFileSync(join(dir, "clock"), "utf8")).toMatch(/^\d+$/);
  expect(open(join(dir, "clock/clock")).next()).toBeGreaterThan(0n);
  await until("the problem is told", () => problems.length > 0);
  expect(problems[0]).toContain("ENOTDIR");
});
