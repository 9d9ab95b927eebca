// Tests the doubling delay of retries, up to its bound, for each key by itself.
import { expect, test } from "bun:test";
import { Backoff } from "../../../src/base/backoff.ts";

test("what fails again and again is due after twice the time, up to the bound, each key by itself", () => {
  const backoff = new Backoff({ firstMs: 100, maxMs: 350 });
  expect(backoff.isDue("a", 0)).toBe(true);
  let now = 0;
  for (const waitMs of [100, 200, 350, 350]) {
    backoff.failed("a", now);
    expect(backoff.isDue("a", now + waitMs - 1)).toBe(false);
    expect(backoff.isDue("a", now + waitMs)).toBe(true);
    now += waitMs;
  }
  expect(backoff.isDue("b", 0)).toBe(true);
  backoff.failed("a", now);
  backoff.succeeded("a");
  expect(backoff.isDue("a", now)).toBe(true);
});
