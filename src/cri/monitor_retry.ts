// Calls of the monitor that may be made twice: when it is killed under one, the next monitor is asked.
import { existsSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { codeOf, messageOf } from "../base/errors.ts";
import type { Calls } from "../monitor/protocol.ts";
import { killAll, processes, removeCgroup, type CgroupPaths } from "../node/cgroup.ts";
import { removingCommand, type Context } from "./context.ts";

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

/**
 * Lets the monitor and the OCI runtime forget a container, killing what runs, and removes its cgroup where
 * that is left: the runtime may have forgotten it before. A runtime that is no longer there keeps no
 * container that has ended: what it knows of it is left to zombies.ts, till it is back.
 * @throws as the last try did.
 */
export async function forget(
  context: Context,
  { id, runtimeHandler }: { id: string; runtimeHandler: string },
  cgroup: CgroupPaths,
): Promise<void> {
  const runtime = removingCommand(context, runtimeHandler);
  const { runtimeTimeoutMs: timeoutMs } = context.config;
  try {
    await askAgain(context, "remove", { id, runtime, timeoutMs });
  } catch (error) {
    const cannotRun = codeOf(error) === "FAILED_PRECONDITION" && !existsSync(runtime.path);
    if (!cannotRun || processes(cgroup).length > 0) throw error;
    context.log.warn("the OCI runtime is gone: what it has of the container goes when it is back", {
      container: id,
      error: messageOf(error),
    });
  }
  const signal = AbortSignal.timeout(timeoutMs);
  await killAll(cgroup, signal);
  await removeCgroup(cgroup, signal);
}
