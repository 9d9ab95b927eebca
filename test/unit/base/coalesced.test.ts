// Tests coalesced().
import { expect, test } from "bun:test";
import { coalesced } from "../../../src/base/coalesced.ts";
import { locksInUse } from "../../../src/base/lock_states.ts";

test("any number of calls during a run share one further run, which begins after it", async () => {
  const runs: PromiseWithResolvers<number>[] = [];
  const call = coalesced("another run", () => {
    const run = Promise.withResolvers<number>();
    runs.push(run);
    return run.promise;
  });
  const first = call();
  await Bun.sleep(0);
  const others = Array.from({ length: 1000 }, () => call());
  await Bun.sleep(0);
  expect(runs).toHaveLength(1);
  const lock = locksInUse().find(({ what }) => what === "another run")!;
  expect([lock.holders.size, lock.waiting.size]).toEqual([1, 1]);
  runs[0]!.resolve(1);
  expect(await first).toBe(1);
  await Bun.sleep(0);
  expect(runs).toHaveLength(2);
  const late = call();
  runs[1]!.resolve(2);
  expect(new Set(await Promise.all(others))).toEqual(new Set([2]));
  await Bun.sleep(0);
  runs[2]!.resolve(3);
  expect(await late).toBe(3);
  expect(locksInUse().some(({ what }) => what === "another run")).toBe(false);
});

test("a run that fails fails its own callers only", async () => {
  let runs = 0;
  const call = coalesced("another run", async () => {
    await Bun.sleep(1);
    if (++runs === 1) throw new Error("the first");
    return runs;
  });
  const first = call();
  await Bun.sleep(0);
  const second = call();
  expect(await first.catch(String)).toBe("Error: the first");
  expect(await second).toBe(2);
});
