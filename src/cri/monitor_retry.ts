// Repeats idempotent monitor calls while the monitor is being replaced.
import { existsSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { codeOf, messageOf } from "../base/errors.ts";
import type { Calls } from "../monitor/protocol.ts";
import { killAll, processes, removeCgroup, type CgroupPaths } from "../node/cgroup.ts";
import type { Context } from "./context.ts";
import { removalRuntime } from "./runtime_handlers.ts";

const triesMax = 5;
const pauseMs = 100;

/** @throws as the last try did. */
export async function callMonitorWithRetry<Name extends "kill" | "remove">(
  { monitor }: { monitor: Pick<Context["monitor"], "call"> },
  call: Name,
  params: Calls[Name][0],
): Promise<void> {
  for (let tries = 1; ; tries++) {
    try {
      await monitor.call(call, params);
      return;
    } catch (error) {
      if (codeOf(error) !== "UNAVAILABLE" || tries === triesMax) throw error;
      await sleep(pauseMs);
    }
  }
}

/**
 * Removes a container from the monitor and the OCI runtime, killing what runs, and then its cgroup, which is
 * left if the runtime had removed the container before. A container without processes is removed even
 * if its runtime's executable is missing; the sweep (recovery/sweep.ts) deletes the runtime's state later.
 * @throws as the last try did.
 */
export async function removeFromRuntime(
  context: Context,
  { id, runtimeHandler }: { id: string; runtimeHandler: string },
  cgroup: CgroupPaths,
): Promise<void> {
  const runtime = removalRuntime(context, runtimeHandler);
  const { runtimeTimeoutMs: timeoutMs } = context.config;
  try {
    await callMonitorWithRetry(context, "remove", { id, runtime, timeoutMs });
  } catch (error) {
    const cannotRun = codeOf(error) === "FAILED_PRECONDITION" && !existsSync(runtime.path);
    if (!cannotRun || processes(cgroup).length > 0) throw error;
    const fields = { container: id, runtime: runtime.path, error: messageOf(error) };
    const message = "OCI runtime is missing, its container state is deleted once it is back";
    context.log.warn(message, fields);
  }
  const signal = AbortSignal.timeout(timeoutMs);
  await killAll(cgroup, signal);
  await removeCgroup(cgroup, signal);
}
