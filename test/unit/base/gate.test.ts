// Tests that either many callers are inside the gate together, or one has it closed and is alone.
import { expect, test } from "bun:test";
import { setImmediate as turnOfLoop } from "node:timers/promises";
import { Gate } from "../../../src/base/gate.ts";
import { failureOf } from "../fakes.ts";

test("close returns when the last caller has left, and later callers wait until it opens", async () => {
  const gate = new Gate("a gate");
  const order: string[] = [];
  const inside = [await gate.enter(), await gate.enter()];
  const closing = gate.close().then((closed) => {
    order.push("closed");
    return closed;
  });
  const entering = gate.enter().then((entered) => {
    order.push("entered");
    return entered;
  });
  for (const one of inside) {
    await turnOfLoop();
    expect(order).toEqual([]);
    one[Symbol.dispose]();
  }
  const closed = await closing;
  await turnOfLoop();
  expect(order).toEqual(["closed"]);
  closed[Symbol.dispose]();
  (await entering)[Symbol.dispose]();
  expect(order).toEqual(["closed", "entered"]);
});

test("a second close waits for the first", async () => {
  const gate = new Gate("a gate");
  const first = await gate.close();
  let isClosed = false;
  const second = gate.close().then((closed) => {
    isClosed = true;
    return closed;
  });
  await turnOfLoop();
  expect(isClosed).toBe(false);
  first[Symbol.dispose]();
  (await second)[Symbol.dispose]();
  expect(gate.isClosed).toBe(false);
});

test("a close that is aborted while callers are inside opens the gate again", async () => {
  const gate = new Gate("the calls");
  const inside = await gate.enter();
  const controller = new AbortController();
  const closing = gate.close(controller.signal);
  const entering = gate.enter();
  expect(gate.isClosed).toBe(true);
  controller.abort();
  expect(await failureOf(closing)).toContain("waiting for the calls");
  (await entering)[Symbol.dispose]();
  inside[Symbol.dispose]();
  (await gate.close())[Symbol.dispose]();
});

test("a close with a signal that has aborted already leaves the gate open", async () => {
  const gate = new Gate("a gate");
  expect(await failureOf(gate.close(AbortSignal.abort()))).toContain("cancelled");
  expect(gate.isClosed).toBe(false);
});

test("enter stops waiting when its signal aborts", async () => {
  const gate = new Gate("the GC");
  using _ = await gate.close();
  const controller = new AbortController();
  const entering = gate.enter(controller.signal);
  controller.abort();
  expect(await failureOf(entering)).toContain("waiting for the GC");
});

test("pass runs the work at once while the gate is open, and waits while it is closed", async () => {
  const gate = new Gate("a gate");
  let runs = 0;
  const work = () => Promise.resolve(++runs);
  const first = gate.pass(work);
  expect(runs).toBe(1); // before any await
  await first;
  const closed = await gate.close();
  const second = gate.pass(work);
  await turnOfLoop();
  expect(runs).toBe(1);
  closed[Symbol.dispose]();
  expect(await second).toBe(2);
});

test("close waits for work that fails", async () => {
  const gate = new Gate("a gate");
  const work = Promise.withResolvers<void>();
  gate.pass(() => work.promise).catch(() => {});
  let isClosed = false;
  const closing = gate.close().then(() => (isClosed = true));
  await turnOfLoop();
  expect(isClosed).toBe(false);
  work.reject(new Error("it fails"));
  await closing;
});

test("tryClose succeeds only while nobody is inside and nobody has the gate closed", async () => {
  const gate = new Gate("a gate");
  const inside = await gate.enter();
  expect(gate.tryClose()).toBeUndefined();
  inside[Symbol.dispose]();
  const closed = gate.tryClose();
  expect(closed).toBeDefined();
  expect(gate.tryClose()).toBeUndefined();
  closed?.[Symbol.dispose]();
  expect(gate.isClosed).toBe(false);
});
