// Tests that an idle process asks the engine to return memory, and a busy one does not.
import { afterEach, expect, jest, spyOn, test } from "bun:test";
import { shrinkWhenIdle, type Work } from "../../src/sys/memory.ts";

const engine = (globalThis as unknown as { Bun: { gc: () => void; shrink: () => void } }).Bun;

afterEach(() => {
  jest.useRealTimers();
  jest.restoreAllMocks();
});

test("garbage is collected a second after work, compiled code goes after a minute, nothing amid work", () => {
  jest.useFakeTimers();
  const gc = spyOn(engine, "gc").mockImplementation(() => {});
  const shrink = spyOn(engine, "shrink").mockImplementation(() => {});
  const asked = () => [gc.mock.calls.length, shrink.mock.calls.length];
  const work: Work = { count: 0, goesOn: false };
  using _ = shrinkWhenIdle(() => work);
  Object.assign(work, { count: 1, goesOn: true });
  jest.advanceTimersByTime(120_000);
  expect(asked()).toEqual([0, 0]);
  work.goesOn = false;
  jest.advanceTimersByTime(1_000);
  expect(asked()).toEqual([1, 0]);
  jest.advanceTimersByTime(58_000);
  expect(asked()).toEqual([1, 0]);
  jest.advanceTimersByTime(600_000);
  expect(asked()).toEqual([1, 1]);
});
