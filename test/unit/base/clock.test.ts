// Tests that times keep their order when the process is not scheduled, and follow a wall clock that is set.
import { expect, test } from "bun:test";
import { WallClock } from "../../../src/base/clock.ts";

/** Clocks that only advance by hand; `pauses` are times without a processor, in turn, before each reading. */
function clocks() {
  const state = { monotonic: 1000, date: 501_000, pauses: [] as number[] };
  const read = (which: "monotonic" | "date") => () => {
    const pause = state.pauses.shift() ?? 0;
    state.monotonic += pause;
    state.date += pause;
    return state[which];
  };
  const clock = new WallClock({ monotonicMs: read("monotonic"), dateMs: read("date") }, 500_000);
  return { state, clock };
}

test.each([
  ["before the first reading", [300]],
  ["before the date is read", [0, 300]],
  ["after the date is read", [0, 0, 300]],
  ["around it", [10, 200, 300]],
  ["each time", Array.from({ length: 40 }, () => 70)],
])("a pause %s changes no time", (_, pauses) => {
  const { state, clock } = clocks();
  state.pauses = pauses;
  const reading = 1234;
  for (let i = 0; i < 5; i++) expect(clock.at(reading)).toBe(501_234);
});

test.each([60, -60, 86_400_000, -86_400_000])(
  "it follows a clock that is set by %d ms",
  (stepMs) => {
    const { state, clock } = clocks();
    expect(clock.at(1000)).toBe(501_000);
    state.date += stepMs;
    expect(clock.at(1000)).toBe(501_000 + stepMs);
    state.pauses = [0, 100, 0, 0, 100]; // and is not misled while it follows the next one
    state.date -= stepMs;
    expect(clock.at(2000)).toBe(502_000);
  },
);

test("a date that is rounded to milliseconds, or drifts, moves no time", () => {
  const { state, clock } = clocks();
  for (const offset of [-1, 1, -40, 40]) {
    state.date = state.monotonic + 500_000 + offset;
    expect(clock.at(7)).toBe(500_007);
  }
});
