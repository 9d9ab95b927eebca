// Tests the turns of what starts at once.
import { expect, test } from "bun:test";
import { setTimeout as sleep } from "node:timers/promises";
import { messageOf } from "../../../src/base/errors.ts";
import { Crowd } from "../../../src/base/crowd.ts";
import { until } from "../../expect.ts";

test("enter() admits as many as the limit, in the order of their arrival", async () => {
  const crowd = new Crowd("others", 2);
  const begun: number[] = [];
  const ends = Array.from({ length: 4 }, () => Promise.withResolvers<void>());
  const all = ends.map(({ promise }, index) =>
    crowd.enter(undefined, async () => {
      begun.push(index);
      await promise;
    }),
  );
  await sleep(1);
  expect(begun).toEqual([0, 1]);
  ends[1]!.resolve();
  await sleep(1);
  expect(begun).toEqual([0, 1, 2]);
  for (const { resolve } of ends) resolve();
  await Promise.all(all);
  expect(begun).toEqual([0, 1, 2, 3]);
});

test("enter() admits the next one when the work hangs, and once when it ends after that", async () => {
  const crowd = new Crowd("others", 1, 500);
  const hung = Promise.withResolvers<string>();
  const first = crowd.enter(undefined, () => hung.promise);
  const begun: string[] = [];
  const second = Promise.withResolvers<void>();
  const work = (name: string) => async () => {
    begun.push(name);
    await second.promise;
  };
  const others = ["second", "third"].map((name) => crowd.enter(undefined, work(name)));
  await until("the next one is admitted", () => begun.length > 0);
  expect(begun).toEqual(["second"]);
  hung.resolve("late");
  expect(await first).toBe("late");
  expect(begun).toEqual(["second"]);
  second.resolve();
  await Promise.all(others);
  expect(begun).toEqual(["second", "third"]);
});

test("enter() gives its place back when the work fails, and rejects as it does", async () => {
  const crowd = new Crowd("others", 1);
  const failed = crowd.enter(undefined, () => Promise.reject(new Error("no")));
  expect(await failed.catch(messageOf)).toBe("no");
  expect(await crowd.enter(undefined, async () => 1)).toBe(1);
});

test("enter() gives up with CANCELLED while it waits", async () => {
  const crowd = new Crowd("others", 1);
  const end = Promise.withResolvers<void>();
  const first = crowd.enter(undefined, () => end.promise);
  const given = new AbortController();
  const second = crowd.enter(given.signal, async () => 2);
  given.abort();
  expect(await second.catch(messageOf)).toContain("waiting for others");
  end.resolve();
  await first;
});
