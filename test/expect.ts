// Provides helpers for tests: waiting for a condition, and taking the error of a failing call.
import { release } from "node:os";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { CriError } from "../src/base/errors.ts";

/** True in a guest, whose processors are emulated (test/run). */
export const isGuest = process.env["ISULAD_SLOW"] === "1";
const [major = 0, minor = 0] = release().split(".").map(Number);
/** Linux 6.15 and newer: a pinned process's exit code stays, whoever reaped it. */
export const keepsExits = major > 6 || (major === 6 && minor >= 15);
const withinMs = isGuest ? 90_000 : 60_000;

/** By how much the pauses of a test are longer in a guest. */
export const pace = isGuest ? 5 : 1;

/** Returns a test's own time limit, but never less than what the run gives each test (test/run: longer in a guest). */
export function testMs(limitMs: number): number {
  return Math.max(limitMs, Number(process.env["ISULAD_TEST_TIMEOUT_MS"] ?? 0));
}

/**
 * Waits for a condition. what: its name, or what tells it at the end.
 * @throws Error naming it after a minute, longer in a guest.
 */
export async function until(
  what: string | (() => string),
  holds: () => boolean | Promise<boolean>,
): Promise<void> {
  const end = performance.now() + withinMs;
  while (!(await holds())) {
    if (performance.now() > end) {
      throw new Error(`timed out waiting until ${typeof what === "string" ? what : what()}`);
    }
    await sleep(2);
  }
}

/** Returns the error of a call that must fail. */
export async function failure(call: Promise<unknown>): Promise<CriError> {
  let result: unknown;
  try {
    result = await call;
  } catch (error) {
    if (error instanceof CriError) return error;
    throw error;
  }
  throw new Error(`the call succeeded: ${JSON.stringify(result)}`);
}

/** Returns a message's own fields without the defaults of its class, as a kubelet sees it. */
export function own(message: object): object {
  return JSON.parse(JSON.stringify(message)) as object;
}
