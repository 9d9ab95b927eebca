// What tests wait for, and ask of failures.
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { CriError } from "../src/base/errors.ts";

/** Whether this is a guest, whose processors are emulated (test/run). */
export const isGuest = process.env["ISULAD_SLOW"] === "1";
const withinMs = isGuest ? 90_000 : 30_000;

/** Waits until it holds. @throws after half a minute, longer in a guest, saying what did not come. */
export async function until(what: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  const end = performance.now() + withinMs;
  while (!(await holds())) {
    if (performance.now() > end) throw new Error(`It never came that ${what}`);
    await sleep(2);
  }
}

/** The error of a call that must fail. */
export async function failure(call: Promise<unknown>): Promise<CriError> {
  let result: unknown;
  try {
    result = await call;
  } catch (error) {
    if (error instanceof CriError) return error;
    throw error;
  }
  throw new Error(`The call succeeded: ${JSON.stringify(result)}`);
}

/** A message's own fields, without the defaults that its class knows: as a kubelet sees it. */
export function own(message: object): object {
  return JSON.parse(JSON.stringify(message)) as object;
}
