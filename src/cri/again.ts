// Calls of the monitor that may be made twice: when it is killed under one, the next monitor is asked.
import { setTimeout as sleep } from "node:timers/promises";
import { codeOf } from "../base/errors.ts";
import type { Calls } from "../monitor/protocol.ts";
import type { Context } from "./context.ts";

const triesMax = 5;
const pauseMs = 100;

/** @throws as the last try did. */
export async function askAgain<Name extends "kill" | "remove">(
  context: Context,
  call: Name,
  params: Calls[Name][0],
): Promise<void> {
  for (let tries = 1; ; tries++) {
    try {
      await context.monitor.call(call, params);
      return;
    } catch (error) {
      if (codeOf(error) !== "UNAVAILABLE" || tries === triesMax) throw error;
      await sleep(pauseMs);
    }
  }
}
