// Runs the program of test/stream_ends.ts briefly: each way to end a session of each kind, once.
import { expect, test } from "bun:test";
import { sessionsOf, streamEnds } from "./stream_ends.ts";

test("sessions that are ended in every way leave nothing, and hold up no shutdown", async () => {
  const count = sessionsOf("forward").length;
  expect(await streamEnds({ count, parallel: 9 })).toEqual([]);
});
