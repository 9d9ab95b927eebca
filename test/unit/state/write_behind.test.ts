// Tests the order, the failures and the retries of write-behind.
import { expect, test } from "bun:test";
import { WriteBehind } from "../../../src/state/write_behind.ts";
import { until } from "../../expect.ts";

test("a record that cannot be written holds up no other, and is retried by flushAll", async () => {
  const written: string[] = [];
  let failures = 0;
  let disk = "full";
  const write = async (id: string) => {
    await Promise.resolve();
    if (id === "bad" && disk === "full") throw new Error("ENOSPC");
    written.push(id);
  };
  const behind = new WriteBehind(write, (failed) => (failures += failed.size));
  behind.add("bad");
  await until("it has failed", () => failures === 1);
  behind.add("good");
  await until("the other is written", () => written.includes("good")); // in less than a minute
  expect(failures).toBe(1);
  disk = "empty";
  await behind.flushAll();
  expect(written).toEqual(["good", "bad"]);
});
