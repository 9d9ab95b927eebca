// Tests when a process asks the engine to return memory: when it is idle, and when it has grown while busy.
import { afterEach, beforeEach, describe, expect, jest, spyOn, test } from "bun:test";
import { returnMemory, type Work } from "../../src/sys/memory.ts";

const engine = (
  globalThis as unknown as { Bun: { gc: (waits: boolean) => void; shrink: () => void } }
).Bun;

afterEach(() => {
  jest.useRealTimers();
  jest.restoreAllMocks();
});

test("the event loop never waits for a collection", () => {
  jest.useFakeTimers();
  const gc = spyOn(engine, "gc").mockImplementation(() => {});
  const shrink = spyOn(engine, "shrink").mockImplementation(() => {});
  const work: Work = { count: 0, goesOn: false };
  let kib = 20_000;
  using _ = returnMemory(
    () => work,
    () => kib,
  );
  for (let second = 0; second < 300; second++) {
    if (second < 200) work.count++;
    kib += 1 << 10;
    jest.advanceTimersByTime(1_000);
  }
  expect(shrink.mock.calls.length).toBeGreaterThan(1);
  expect(gc.mock.calls.length).toBeGreaterThan(shrink.mock.calls.length);
  expect(gc.mock.calls.filter(([waits]) => waits)).toEqual([]);
});

test("garbage that outlives young collections is collected as soon as the heap has grown", async () => {
  const gc = spyOn(engine, "gc");
  using _ = returnMemory(
    () => ({ count: 0, goesOn: true }),
    () => 20_000,
  );
  const queue: Buffer[] = [];
  for (let turns = 0; !gc.mock.calls.some(([waits]) => waits) && turns < 3_000; turns++) {
    for (let count = 0; count < 20; count++) queue.push(Buffer.allocUnsafeSlow(64 << 10));
    if (queue.length > 400) queue.length = 0;
    await Bun.sleep(1);
  }
  expect(gc.mock.calls.some(([waits]) => waits)).toBe(true);
});

test("garbage is collected a second after work that took memory, compiled code goes after a minute", () => {
  jest.useFakeTimers();
  const gc = spyOn(engine, "gc").mockImplementation(() => {});
  const shrink = spyOn(engine, "shrink").mockImplementation(() => {});
  const asked = () => [gc.mock.calls.length, shrink.mock.calls.length];
  const work: Work = { count: 0, goesOn: false };
  let kib = 20_000;
  using _ = returnMemory(
    () => work,
    () => kib,
  );
  Object.assign(work, { count: 1, goesOn: true });
  jest.advanceTimersByTime(30_000);
  kib += 4 << 10;
  jest.advanceTimersByTime(9_000);
  expect(asked()).toEqual([0, 0]); // amid work
  work.goesOn = false;
  jest.advanceTimersByTime(1_000);
  expect(asked()).toEqual([1, 0]);
  jest.advanceTimersByTime(58_000);
  expect(asked()).toEqual([1, 0]);
  jest.advanceTimersByTime(600_000);
  expect(asked()).toEqual([2, 1]);
});

test("rare calls that take no memory, such as probes, are not followed by collections", () => {
  jest.useFakeTimers();
  const gc = spyOn(engine, "gc").mockImplementation(() => {});
  const work: Work = { count: 0, goesOn: false };
  using _ = returnMemory(
    () => work,
    () => 20_000,
  );
  for (let probes = 0; probes < 30; probes++) {
    work.count++;
    jest.advanceTimersByTime(10_000);
  }
  expect(gc).toHaveBeenCalledTimes(0);
});

describe("a process that is never idle", () => {
  const work: Work = { count: 0, goesOn: false };
  let kib = 20_000;
  let shrink: ReturnType<typeof spyOn>;
  let returning: Disposable;
  const pass = (seconds: number) => {
    for (let passed = 0; passed < seconds; passed++) {
      work.count++;
      jest.advanceTimersByTime(1_000);
    }
  };
  beforeEach(() => {
    jest.useFakeTimers();
    Object.assign(work, { count: 0, goesOn: false });
    kib = 20_000;
    shrink = spyOn(engine, "shrink").mockImplementation(() => {});
    returning = returnMemory(
      () => work,
      () => kib,
    );
    jest.advanceTimersByTime(600); // each pass ends between two looks, when code was discarded
  });
  afterEach(() => returning[Symbol.dispose]());

  test("returns memory that it took since the last time, at most once a minute", () => {
    pass(10);
    kib = 40_000;
    pass(49);
    expect(shrink).toHaveBeenCalledTimes(0);
    pass(1);
    expect(shrink).toHaveBeenCalledTimes(1);
    kib = 30_000; // what the engine needs
    pass(600);
    expect(shrink).toHaveBeenCalledTimes(1);
    kib = 30_000 + (4 << 10);
    pass(1);
    expect(shrink).toHaveBeenCalledTimes(2);
  });

  test("waits up to ten seconds for a moment without calls", () => {
    pass(10);
    kib = 40_000;
    work.goesOn = true;
    pass(55);
    expect(shrink).toHaveBeenCalledTimes(0);
    work.goesOn = false;
    pass(1);
    expect(shrink).toHaveBeenCalledTimes(1);
    pass(1);
    work.goesOn = true;
    kib = 60_000;
    pass(68);
    expect(shrink).toHaveBeenCalledTimes(1);
    pass(1);
    expect(shrink).toHaveBeenCalledTimes(2);
  });
});
