// Tests the semaphore and the keyed lock: limits, order, and callers that give up.
import { expect, test } from "bun:test";
import { setImmediate as turnOfLoop } from "node:timers/promises";
import { KeyedLock } from "../../../src/base/keyed_lock.ts";
import { Semaphore } from "../../../src/base/semaphore.ts";
import { failureOf } from "../fakes.ts";

test("a semaphore admits `limit` callers, and the others in the order of their calls", async () => {
  const semaphore = new Semaphore(2, "a turn");
  const order: number[] = [];
  const places = [1, 2, 3, 4].map(async (number) => {
    const place = await semaphore.acquire();
    order.push(number);
    return place;
  });
  await turnOfLoop();
  expect(order).toEqual([1, 2]);
  expect(semaphore.isFree).toBe(false);
  (await places[1]!)[Symbol.dispose]();
  await turnOfLoop();
  expect(order).toEqual([1, 2, 3]);
  for (const index of [0, 2, 3]) (await places[index]!)[Symbol.dispose]();
  expect(order).toEqual([1, 2, 3, 4]);
  expect(semaphore.isFree).toBe(true);
});

test("a caller whose signal aborts while it waits loses its turn to the next one", async () => {
  const semaphore = new Semaphore(1, "the disk");
  const first = await semaphore.acquire();
  const controller = new AbortController();
  const second = semaphore.acquire(controller.signal);
  const third = semaphore.run(new AbortController().signal, () => Promise.resolve("third"));
  controller.abort();
  expect(await failureOf(second)).toContain("waiting for the disk");
  first[Symbol.dispose]();
  expect(await third).toBe("third");
  expect(semaphore.isFree).toBe(true);
});

test("a caller whose signal has aborted already takes no place", async () => {
  const semaphore = new Semaphore(1, "a turn");
  expect(await failureOf(semaphore.acquire(AbortSignal.abort()))).toContain("cancelled");
  expect(semaphore.isFree).toBe(true);
});

test("an abort after the turn has come does not end the work", async () => {
  const controller = new AbortController();
  const semaphore = new Semaphore(1, "a turn");
  const first = await semaphore.acquire();
  const work = semaphore.run(controller.signal, async () => {
    controller.abort();
    await turnOfLoop();
    return "done";
  });
  first[Symbol.dispose]();
  expect(await work).toBe("done");
});

test("a semaphore is free again after work that fails", async () => {
  const semaphore = new Semaphore(1, "a turn");
  const failing = semaphore.run(undefined, () => Promise.reject(new Error("it fails")));
  expect(await failureOf(failing)).toContain("it fails");
  expect(semaphore.isFree).toBe(true);
});

test("a keyed lock serves one caller a key, and different keys at once", async () => {
  const lock = new KeyedLock("key");
  const order: string[] = [];
  const first = await lock.acquire("a");
  const waiting = ["a", "b", "a"].map((key, index) =>
    lock.run(key, undefined, async () => {
      order.push(`${key}${index}`);
      await turnOfLoop();
    }),
  );
  await turnOfLoop();
  expect(order).toEqual(["b1"]);
  first[Symbol.dispose]();
  await Promise.all(waiting);
  expect(order).toEqual(["b1", "a0", "a2"]);
  expect([lock.isHeld("a"), lock.isHeld("b")]).toEqual([false, false]);
});

test("a key stays held while a caller waits for it, also when another one gives up", async () => {
  const lock = new KeyedLock("key");
  const first = await lock.acquire("a");
  const controller = new AbortController();
  const second = lock.acquire("a", controller.signal);
  const third = lock.acquire("a");
  controller.abort();
  expect(await failureOf(second)).toContain("cancelled");
  first[Symbol.dispose]();
  expect(lock.isHeld("a")).toBe(true);
  (await third)[Symbol.dispose]();
  expect(lock.isHeld("a")).toBe(false);
});

test("a caller whose signal has aborted already leaves a key free", async () => {
  const lock = new KeyedLock("key");
  expect(await failureOf(lock.acquire("a", AbortSignal.abort()))).toContain("cancelled");
  expect(lock.isHeld("a")).toBe(false);
});
