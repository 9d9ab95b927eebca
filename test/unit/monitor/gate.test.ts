// The gate that holds calls up while the monitor is replaced.
import { expect, test } from "bun:test";
import { Gate } from "../../../src/monitor/upgrade.ts";

test("close refuses a second upgrade, and calls that wait go on after the first", async () => {
  const gate = new Gate();
  await gate.close();
  const waiting = gate.pass(() => Promise.resolve("passed"));
  expect(() => gate.close()).toThrow("another upgrade");
  gate.open();
  expect(await waiting).toBe("passed");
});

test("close waits for calls that run, also for one that fails", async () => {
  const gate = new Gate();
  const call = Promise.withResolvers<void>();
  gate.pass(() => call.promise).catch(() => {});
  let isClosed = false;
  const closed = gate.close().then(() => (isClosed = true));
  await Promise.resolve();
  expect(isClosed).toBe(false);
  call.reject(new Error("it fails"));
  await closed;
});
