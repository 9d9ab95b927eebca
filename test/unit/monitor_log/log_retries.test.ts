// Tests when logs that cannot be written are tried again: 60 on a full disk are tried no more often than one.
import { expect, test } from "bun:test";
import { LogRetries } from "../../../src/monitor_log/log_retries.ts";

/** Tries every due log, which fails, until a time; returns the tries' times by log. */
function failUntil(end: number, retries: LogRetries, errno: string, from = 0) {
  const tries = new Map<string, number[]>();
  for (let now = from; now < end; now += Math.max(1, retries.waitMs(now)!)) {
    for (const id of retries.due(now)) {
      tries.set(id, [...(tries.get(id) ?? []), now]);
      retries.failed(id, errno, now);
    }
  }
  return tries;
}

const ids = Array.from({ length: 60 }, (_, index) => `container ${index}`);

test("the pause between two tries of a log grows to a second", () => {
  const retries = new LogRetries();
  retries.failed("one", "EPERM", 0);
  const tries = failUntil(5_000, retries, "EPERM").get("one")!;
  const pauses = tries.map((at, index) => at - (tries[index - 1] ?? 0));
  expect(pauses).toEqual([20, 40, 80, 160, 320, 640, 1_000, 1_000, 1_000]);
});

test("60 logs of a full disk are tried in turn, not more often than one", () => {
  const retries = new LogRetries();
  for (const id of ids) retries.failed(id, "ENOSPC", 0);
  const tries = failUntil(66_000, retries, "ENOSPC");
  expect(tries.size).toBe(60);
  expect([...tries.values()].flat().length).toBeLessThan(75);
});

test("files that cannot be written by themselves are each tried", () => {
  const retries = new LogRetries();
  for (const id of ids) retries.failed(id, "EPERM", 0);
  expect(retries.due(20).length).toBe(60);
});

test("when one log of a file system could be written, all of them are tried at once", () => {
  const retries = new LogRetries();
  for (const id of ids) retries.failed(id, "ENOSPC", 0);
  retries.failed("immutable", "EPERM", 0);
  failUntil(10_000, retries, "ENOSPC");
  const now = 10_000 + retries.waitMs(10_000)!;
  const [first] = retries.due(now).filter((id) => id !== "immutable");
  expect(retries.due(now + 1)).not.toContain(ids[1]);
  retries.succeeded(first!);
  expect(retries.waitMs(now + 1)).toBe(0);
  expect(retries.due(now + 1).filter((id) => id !== "immutable").length).toBe(59);
  expect(retries.due(now + 2)).not.toContain(ids[1]);
});

test("a disk that takes a line now and then is not tried more often for it", () => {
  const retries = new LogRetries();
  retries.failed("one", "ENOSPC", 0);
  failUntil(4_000, retries, "ENOSPC");
  for (let seconds = 5; seconds < 8; seconds++) {
    expect(retries.due(seconds * 1_000)).toEqual(["one"]);
    retries.succeeded("one");
    retries.failed("one", "ENOSPC", seconds * 1_000);
    expect(retries.waitMs(seconds * 1_000)).toBe(1_000);
  }
  retries.succeeded("one");
  retries.failed("one", "ENOSPC", 60_000);
  expect(retries.waitMs(60_000)).toBe(20);
});

test("an ended log is not tried, and nothing is waited for", () => {
  const retries = new LogRetries();
  retries.failed("one", "EIO", 0);
  retries.forget("one");
  expect(retries.waitMs(0)).toBeUndefined();
  expect(retries.due(1_000)).toEqual([]);
});
