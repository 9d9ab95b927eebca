// How late the event loop is, measured while it is watched.
import { expect, test } from "bun:test";
import { setTimeout as sleep } from "node:timers/promises";
import { LoopLag } from "../../../src/stats/loop_lag.ts";

function hold(ms: number): void {
  for (const end = performance.now() + ms; performance.now() < end;);
}

test("LoopLag tells how long the loop was held up, at most a tick less", async () => {
  const told: number[] = [];
  const lag = new LoopLag((ms) => told.push(ms));
  using _ = lag.watch();
  await sleep(20);
  hold(100);
  await sleep(20);
  expect(Math.max(...told)).toBeGreaterThan(90);
});

test("LoopLag tells of what held the loop up until nobody watched any more", () => {
  const told: number[] = [];
  const lag = new LoopLag((ms) => told.push(ms));
  const [first, second] = [lag.watch(), lag.watch()];
  hold(50);
  first[Symbol.dispose]();
  expect(told).toEqual([]);
  second[Symbol.dispose]();
  expect(told).toHaveLength(1);
  expect(told[0]).toBeGreaterThan(40);
});

test("LoopLag does not tick while nobody watches", async () => {
  const told: number[] = [];
  const lag = new LoopLag((ms) => told.push(ms));
  lag.watch()[Symbol.dispose]();
  hold(20);
  await sleep(50);
  expect(told).toEqual([]);
});
