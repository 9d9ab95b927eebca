// Tests CPU profiles of the daemon's own process.
import { expect, test } from "bun:test";
import { profile } from "../../src/debug.ts";
import { failure } from "../expect.ts";

test("one profile is made at a time, also of two that are asked for at once", async () => {
  const over = AbortSignal.abort();
  const first = profile(60, over);
  expect(await failure(profile(60, over))).toMatchObject({ code: "FAILED_PRECONDITION" });
  expect(JSON.parse(await first)).toHaveProperty("nodes");
  expect(JSON.parse(await profile(60, over))).toHaveProperty("nodes");
});
