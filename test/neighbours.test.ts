// Tests that some bad neighbours of test/neighbours.ts, for a few seconds each, do a quiet pod no harm: floods of frames
// and heads, a hostile config, sessions that are cut off, a log on a full disk, and idle containers.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { attacks } from "./neighbours.ts";
import { manyContainers } from "./neighbours_crowds.ts";
import { measure, type Result } from "./neighbours_run.ts";
import { openStage, type WholeStage } from "./neighbours_stage.ts";

/** Generous on a busy machine: what these floods once cost were 3 to 12 s, 360 to 3,600 MiB and 94 % of a core. */
const lagMsMax = 1_000;
const memoryMibMax = 200;
const logShareMax = 0.3;
const plan = { seconds: 3, rounds: 1, warmMs: 500, settleMs: 0 };
const chosen = [
  "spdy-frames",
  "ws-pongs",
  "resize-braces",
  "http-heads",
  "config-env",
  "forward-without-error",
  "full-log-disk",
];

let stage: WholeStage;
beforeAll(async () => {
  stage = await openStage();
});
afterAll(() => stage?.[Symbol.asyncDispose]());

test.each(chosen)(
  "%s delays nobody, and leaves nothing",
  async (name) => {
    const result = await measure(
      stage,
      attacks.find((attack) => attack.name === name)!,
      plan,
    );
    expect(result.faults).toEqual([]);
    expect(result.descriptors.left).toEqual([]);
    expect(result.failedAnswers).toBe(0);
    expect(result.lag.max).toBeLessThan(lagMsMax);
    // Of the others, garbage of the engine, whose amount depends on the speed of the machine.
    if (name === "config-env") expect(grown(result)).toBeLessThan(memoryMibMax);
    expect(result.cpu.logThread).toBeLessThan(logShareMax);
  },
  120_000,
);

function grown({ memory: { before, peak } }: Result): number {
  return peak.own - before.own;
}

test("idle containers take no more of root's pipes than programs do", async () => {
  const { faults } = await measure(stage, manyContainers(6), { ...plan, seconds: 0 });
  // Other daemons on this machine may have used up root's budget.
  expect(faults.filter((fault) => !fault.startsWith("a new pipe"))).toEqual([]);
}, 120_000);

test("the quiet pod has lost no probe, no stream and no byte, and the daemon ends at once", async () => {
  await stage.quiet.finish();
  const { problems, failedProbes, failedStreams, lostBytes } = stage.quiet.harm;
  expect(problems).toEqual([]);
  expect([failedProbes, failedStreams, lostBytes]).toEqual([0, 0, 0]);
  // It was 15 s while one session was never given back.
  expect(await stage.daemon.stop()).toBeLessThan(5_000);
}, 120_000);
