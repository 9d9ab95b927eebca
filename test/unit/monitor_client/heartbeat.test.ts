// Tests the monitor's heartbeat with a fake clock.
import { afterEach, beforeEach, expect, jest, test } from "bun:test";
import { heartbeat } from "../../../src/monitor_client/heartbeat.ts";

beforeEach(() => void jest.useFakeTimers());
afterEach(() => void jest.useRealTimers());

/** Lets n beats pass; between them, promises settle. */
async function beats(n: number): Promise<void> {
  for (let i = 0; i < n; i++) {
    jest.advanceTimersByTime(5_000);
    for (let turns = 0; turns < 5; turns++) await Promise.resolve();
  }
}

function watched(ping: () => Promise<unknown>) {
  const counts = { pings: 0, silences: 0 };
  const beat = heartbeat(
    () => {
      counts.pings++;
      return ping();
    },
    () => counts.silences++,
  );
  return { counts, [Symbol.dispose]: () => beat[Symbol.dispose]() };
}

test("a monitor that answers is pinged at each beat", async () => {
  using beat = watched(() => Promise.resolve());
  await beats(10);
  expect(beat.counts).toEqual({ pings: 10, silences: 0 });
});

test("an error is an answer", async () => {
  using beat = watched(() => Promise.reject(new Error("UNIMPLEMENTED")));
  await beats(10);
  expect(beat.counts).toEqual({ pings: 10, silences: 0 });
});

test("three beats without an answer are silence, reported once", async () => {
  using beat = watched(() => new Promise(() => {}));
  await beats(3);
  expect(beat.counts).toEqual({ pings: 1, silences: 0 });
  await beats(1);
  expect(beat.counts).toEqual({ pings: 1, silences: 1 });
  await beats(10);
  expect(beat.counts).toEqual({ pings: 1, silences: 1 });
});

test("after its disposal nothing is pinged", async () => {
  watched(() => Promise.resolve())[Symbol.dispose]();
  await beats(2);
});
