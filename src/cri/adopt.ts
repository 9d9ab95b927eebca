// Containers that run and that the monitor does not know, because its record of them was lost or damaged:
// the daemon's own has all that the monitor needs.
import { codeOf, messageOf } from "../base/errors.ts";
import { nowNs } from "../base/clock.ts";
import type { AdoptRequest } from "../monitor/protocol.ts";
import { killAll } from "../node/cgroup.ts";
import type { Container } from "../state/container.ts";
import type { Sandbox } from "../state/sandbox.ts";
import { askAgain } from "./monitor_retry.ts";
import { startRequest } from "./container.ts";
import { removingCommand, type Context } from "./context.ts";
import { pauseRequest } from "./pause.ts";

/**
 * Gives a running container to the monitor, which tells of its end, also when that was before. False: the
 * monitor does not take it, so it was killed.
 * @throws CriError UNAVAILABLE when the monitor ends meanwhile: the next one is asked.
 */
export function adoptContainer(
  context: Context,
  container: Container,
  process: { pid: number; startedAtNs: string },
): Promise<boolean> {
  const { pid, startedAtNs } = process;
  const sandbox = context.sandboxes.find(container.sandboxId);
  const runtime = removingCommand(context, container.runtimeHandler);
  const request = startRequest(context, container, { sandbox, runtime });
  return adopt(context, { ...request, pid, startedAtNs });
}

/** The same of a pod's pause container. */
export function adoptPause(context: Context, sandbox: Sandbox, pid: number): Promise<boolean> {
  const request = pauseRequest(context, sandbox, removingCommand(context, sandbox.runtimeHandler));
  return adopt(context, { ...request, pid, startedAtNs: String(nowNs()) });
}

async function adopt(context: Context, request: AdoptRequest): Promise<boolean> {
  const { id, runtime, cgroup } = request;
  try {
    await context.monitor.adopt(request);
    return true;
  } catch (error) {
    if (codeOf(error) === "UNAVAILABLE") throw error;
    // An older monitor's UNIMPLEMENTED, say. Nobody would see its end, and a second one may be started.
    const fields = { container: id, error: messageOf(error) };
    context.log.error("the monitor does not take a container over: killing it", fields);
    const { runtimeTimeoutMs: timeoutMs } = context.config;
    await askAgain(context, "remove", { id, runtime, timeoutMs });
    await killAll(cgroup, AbortSignal.timeout(timeoutMs));
    return false;
  }
}
