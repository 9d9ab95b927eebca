// Runs a short storm of killed shims with a fixed seed, and tests its checks with planted faults.
import { describe, expect, test } from "bun:test";
import { startDaemon } from "./harness.ts";
import { chosenRuncShim, runcHandler } from "./shim_programs.ts";
import { countKilled, countKilledLog, shimStorm } from "./shim_storm.ts";
import { isClean, newTally } from "./storm.ts";

function logOf(lines: string[], tag = "F"): string {
  return lines.map((line) => `2026-01-01T00:00:00.000000000Z stdout ${tag} ${line}\n`).join("");
}

describe("the checks of a killed shim", () => {
  const whole = logOf(["1", "2", "3"]);
  test.each([
    ["a whole log", whole, 3, true],
    ["a log whose last line is cut", `${logOf(["1", "2"])}${logOf([""], "P")}`, 2, true],
    ["a log with less than a buffer lost", whole, 1000, true],
    ["a log with more than that lost", whole, 100_000, false],
    ["a log without its first line", logOf(["2", "3"]), 3, false],
    ["a log without one within", logOf(["1", "3"]), 3, false],
    ["a log with other text", logOf(["1", "no"]), 2, false],
  ])("%s", (_, log, written, isRight) => {
    const tally = newTally();
    countKilledLog(log, written, tally, "a writer");
    expect(isClean(tally)).toBe(isRight);
  });

  test.each([
    ["the code that it reported", 7, 7, "Error", "", true],
    ["137 and the reason", 7, 137, "Error", "its shim has ended: why", true],
    ["137 without the reason", 7, 137, "Error", "", false],
    ["another code", 7, 0, "Completed", "", false],
    ["a code though it had none", undefined, 0, "Completed", "", false],
    ["137 and the reason, where it had none", undefined, 137, "Error", "its shim has ended", true],
  ])("%s", (_, code, exitCode, reason, message, isRight) => {
    const tally = newTally();
    countKilled(code, { exitCode, reason, message }, tally, "a container");
    expect(isClean(tally)).toBe(isRight);
  });
});

const version = chosenRuncShim();
test.skipIf(version === undefined)("a short storm", async () => {
  const config = { runtimes: { shim: runcHandler(version!) }, "default-runtime": "shim" };
  await using daemon = await startDaemon({ config });
  const tally = await shimStorm(daemon, { kills: 2, pods: 2, burst: 20, seed: 1 });
  expect(tally.problems).toEqual([]);
  expect(tally.exits).toBeGreaterThan(10);
  expect(tally.lines).toBeGreaterThan(100);
});
