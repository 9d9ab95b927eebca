// Hands running containers to a monitor that does not know them, because its records were lost or damaged;
// the daemon's records hold all that the monitor needs.
import { codeOf, messageOf } from "../base/errors.ts";
import { nowNs } from "../base/clock.ts";
import type { AdoptRequest } from "../monitor/protocol.ts";
import { killAll } from "../node/cgroup.ts";
import type { Container } from "../state/container.ts";
import type { Sandbox } from "../state/sandbox.ts";
import type { Context } from "./context.ts";
import { pauseRequest, startRequest } from "./monitor_requests.ts";
import { callMonitorWithRetry } from "./monitor_retry.ts";
import { removalRuntime } from "./runtime_handlers.ts";

/**
 * Resolves to true if the monitor adopts the container: it then reports its exit, past or future. Otherwise
 * the container is killed, and the result is false.
 * @throws CriError UNAVAILABLE when the monitor ends meanwhile; retry with the next one.
 */
export function adoptContainer(
  context: Context,
  container: Container,
  process: { pid: number; startedAtNs: string },
): Promise<boolean> {
  const { pid, startedAtNs } = process;
  const sandbox = context.sandboxes.find(container.sandboxId);
  const runtime = removalRuntime(context, container.runtimeHandler);
  const request = startRequest(context, container, { sandbox, runtime });
  return adopt(context, { ...request, pid, startedAtNs });
}

/** Hands over a pod's pause container in the same way. */
export function adoptPause(context: Context, sandbox: Sandbox, pid: number): Promise<boolean> {
  const request = pauseRequest(context, sandbox, removalRuntime(context, sandbox.runtimeHandler));
  return adopt(context, { ...request, pid, startedAtNs: String(nowNs()) });
}

async function adopt(context: Context, request: AdoptRequest): Promise<boolean> {
  const { id, runtime, cgroup } = request;
  try {
    await context.monitor.adopt(request);
    return true;
  } catch (error) {
    if (codeOf(error) === "UNAVAILABLE") throw error;
    // Such as UNIMPLEMENTED from an older monitor. Nobody would see the exit of a container that runs on: a kubelet
    // might start a second one beside it.
    const fields = { container: id, error: messageOf(error) };
    context.log.error("the monitor refused to adopt a running container, killing it", fields);
    const { runtimeTimeoutMs: timeoutMs } = context.config;
    await callMonitorWithRetry(context, "remove", { id, runtime, timeoutMs });
    await killAll(cgroup, AbortSignal.timeout(timeoutMs));
    return false;
  }
}
