import { expect, test } from "bun:test";
import { WriteBehind } from "../../../src/state/write_behind.ts";
import { until } from "../../expect.ts";

test("a record that cannot be settled holds no other up, and is settled with all at the end", async () => {
  const settled: string[] = [];
  let failures = 0;
  let disk = "full";
  const settle = async (id: string) => {
    await Promise.resolve();
    if (id === "bad" && disk === "full") throw new Error("ENOSPC");
    settled.push(id);
  };
  const settler = new WriteBehind(settle, (failed) => (failures += failed.size));
  settler.add("bad");
  await until("it has failed", () => failures === 1);
  settler.add("good");
  await until("the other is settled", () => settled.includes("good")); // in less than a minute
  expect(failures).toBe(1);
  disk = "empty";
  await settler.settleAll();
  expect(settled).toEqual(["good", "bad"]);
});
