// Tests that the event loop's lag is measured while it is watched.
import { expect, test } from "bun:test";
import { setTimeout as sleep } from "node:timers/promises";
import { LoopLag } from "../../../src/stats/loop_lag.ts";

function hold(ms: number): void {
  for (const end = performance.now() + ms; performance.now() < end;);
}

test("LoopLag reports how long the loop was blocked, at most a tick less", async () => {
  const reported: number[] = [];
  const lag = new LoopLag((ms) => reported.push(ms));
  using _ = lag.watch();
  await sleep(20);
  hold(100);
  await sleep(20);
  expect(Math.max(...reported)).toBeGreaterThan(90);
});

test("LoopLag reports a block that lasts until the last watcher stops", () => {
  const reported: number[] = [];
  const lag = new LoopLag((ms) => reported.push(ms));
  const [first, second] = [lag.watch(), lag.watch()];
  hold(50);
  first[Symbol.dispose]();
  expect(reported).toEqual([]);
  second[Symbol.dispose]();
  expect(reported).toHaveLength(1);
  expect(reported[0]).toBeGreaterThan(40);
});

test("LoopLag does not tick without a watcher", async () => {
  const reported: number[] = [];
  const lag = new LoopLag((ms) => reported.push(ms));
  lag.watch()[Symbol.dispose]();
  hold(20);
  await sleep(50);
  expect(reported).toEqual([]);
});
