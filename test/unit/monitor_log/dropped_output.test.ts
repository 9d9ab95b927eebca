// Tests when output is dropped whose log cannot be written, and what the log says of it.
import { expect, test } from "bun:test";
import { DroppedOutput, usualStallMs } from "../../../src/monitor_log/dropped_output.ts";

function failing(errno: string, onError: "drop" | "block" = "drop") {
  const dropped = new DroppedOutput(onError);
  dropped.failed(errno, 1_000);
  return dropped;
}

test.each(["ENOSPC", "EDQUOT", "EAGAIN", ""])("%p: after a stall of 5 s", (errno) => {
  const dropped = failing(errno);
  expect(dropped.isDue(1_000 + usualStallMs - 1)).toBe(false);
  dropped.failed(errno, 1_000 + usualStallMs - 1); // a try
  expect(dropped.isDue(1_000 + usualStallMs)).toBe(true);
  dropped.wrote();
  expect(dropped.isDue(100_000)).toBe(false);
});

test.each(["EROFS", "EIO", "EPERM", "EACCES"])("%p: at once", (errno) => {
  expect(failing(errno).isDue(1_000)).toBe(true);
});

test("never with log-on-error block", () => {
  expect(failing("EROFS", "block").isDue(1e9)).toBe(false);
});

test("the note has the bytes, the lines, the time and the reason, once", () => {
  const dropped = failing("ENOSPC");
  dropped.add(0, 0, 0);
  expect(dropped.note()).toBeUndefined();
  dropped.add(100, 2, Date.UTC(2026, 10, 28, 3, 0, 0));
  dropped.add(50, 1, Date.UTC(2026, 10, 28, 3, 0, 7, 500));
  expect(dropped.note()).toBe(
    "isulad-ts: 150 bytes of output with 3 line ends were dropped from 2026-11-28T03:00:00.000Z to " +
      "2026-11-28T03:00:07.500Z: this log could not be written (ENOSPC)",
  );
  dropped.said();
  expect([dropped.note(), dropped.unsaidBytes, dropped.bytes]).toEqual([undefined, 0, 150]);
});
