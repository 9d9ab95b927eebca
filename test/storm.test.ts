// Runs a short storm with a fixed seed, and tests the counter of losses with planted faults.
import { describe, expect, test } from "bun:test";
import { startDaemon } from "./harness.ts";
import { countExit, countLines, isClean, newTally, storm } from "./storm.ts";

/** Makes the log of a writer of these lines. */
function logOf(lines: string[]): string {
  return lines.map((line) => `2026-01-01T00:00:00.000000000Z stdout F ${line}\n`).join("");
}

function counted(log: string) {
  const tally = newTally();
  countLines(log, tally, "a writer");
  return tally;
}

describe("the counter of losses", () => {
  test("finds nothing in a complete log, and counts repeated lines", () => {
    expect(isClean(counted(logOf(["1", "2", "3", "END 3"])))).toBe(true);
    const repeated = counted(logOf(["1", "2", "1", "2", "3", "END 3"]));
    expect(isClean(repeated)).toBe(true);
    expect(repeated.linesRepeated).toBe(2);
  });

  test.each([
    ["the first", ["2", "3", "END 3"]],
    ["one within", ["1", "3", "END 3"]],
    ["the last", ["1", "2", "END 3"]],
  ])("finds a lost line: %s", (_, lines) => {
    const tally = counted(logOf(lines));
    expect(tally.linesLost).toBe(1);
    expect(isClean(tally)).toBe(false);
  });

  test.each([
    ["a line cut in two", `${logOf(["1"])}2026-01-01T00:00:00Z std${logOf(["2", "END 2"])}`],
    ["two lines in one", logOf(["12", "END 2"])],
    ["foreign text", logOf(["1", "hello", "END 1"])],
    ["no end", logOf(["1", "2"])],
  ])("finds %s", (_, log) => expect(isClean(counted(log))).toBe(false));

  test.each([
    [7, 7, "Error", "", true],
    [0, 0, "Completed", "", true],
    [7, 255, "Unknown", "why", true],
    [7, 255, "Unknown", "", false],
    [7, 255, "Error", "", false],
    [7, 0, "Completed", "", false],
    [7, 7, "OOMKilled", "", false],
    [0, 137, "Error", "", false],
  ])(
    "exit %d told as %d, %s, message %p: right is %p",
    (code, exitCode, reason, message, right) => {
      const tally = newTally();
      countExit(code, { exitCode, reason, message }, tally, "a container");
      expect(isClean(tally)).toBe(right);
    },
  );
});

test("a short storm loses no line, exit code or container, and leaves nothing", async () => {
  await using daemon = await startDaemon();
  const plan = { daemon: 1, monitor: 2, both: 1, writers: 3, burst: 40, codes: 8, seed: 4 };
  await storm(daemon, { ...plan, daemon: 0, monitor: 1, both: 0, codes: 1 }); // what is made once
  const before = { ...daemon.snapshot(), descriptors: new Map<string, number>() };
  const tally = await storm(daemon, plan);
  expect(tally.problems).toEqual([]);
  expect(isClean(tally)).toBe(true);
  const after = await daemon.leaksSince(before);
  expect(after.filter((leak) => !leak.startsWith("descriptor"))).toEqual([]);
}, 400_000);
