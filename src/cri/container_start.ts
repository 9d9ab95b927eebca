// StartContainer: asks the monitor to start a container and commits the outcome.
import { join } from "node:path";
import { throwIfAborted } from "../base/abort.ts";
import { nowNs } from "../base/clock.ts";
import { CriError, codeOf, messageOf } from "../base/errors.ts";
import { step } from "../base/failpoints.ts";
import { toBigInt } from "../base/int64.ts";
import { isRootMounted } from "../layer/rootfs.ts";
import type { Started, StartRequest } from "../monitor/protocol.ts";
import { startContainer as start } from "../monitor_client/start.ts";
import type { StartContainerRequest } from "../proto/types.ts";
import { controllerAdvice, ociResources, oomScoreAdjAdvice } from "../spec/resources.ts";
import { running, startFailed, type Container } from "../state/container.ts";
import { isInGuest } from "../state/sandbox.ts";
import type { Call, Context } from "./context.ts";
import { containerFields } from "./log_subject.ts";
import { startRequest } from "./monitor_requests.ts";
import { callMonitorWithRetry } from "./monitor_retry.ts";
import { requireStartable } from "./preconditions.ts";
import { closedRootOf } from "./rootfs_owner.ts";
import { handlerOf, removalRuntime } from "./runtime_handlers.ts";
import { readySandbox } from "./sandbox_lookup.ts";
import { targetPid } from "./spec_inputs.ts";

export async function startContainer(
  context: Context,
  request: StartContainerRequest,
  { signal }: Call,
): Promise<object> {
  const { id } = context.containers.get(request.container_id ?? "");
  using held = new DisposableStack();
  held.use(await context.nri?.enter(signal));
  held.use(await context.containers.lock(id, signal));
  const container = context.containers.get(id);
  requireStartable(container);
  const sandbox = await readySandbox(context, container.sandboxId);
  targetPid(context, container); // throws if the target, whose pid is in the spec, has exited since
  const { command } = handlerOf(context, container);
  const args = startRequest(context, container, { sandbox, runtime: command });
  // A kubelet that has given up finds the container CREATED and creates another attempt, beside which this one would
  // run. From here on this one is in context.starting, which refuses another attempt until the outcome is known.
  throwIfAborted(`starting container ${id}`, signal);
  await commitStart(context, args, async () => {
    requireRootMounted(args.bundle);
    const { monitor, crowds, nri } = context;
    return start({ monitor, crowd: crowds.containers }, args, {
      wantStarts: nri?.wantsStarts ?? false,
      notify: async (pid) => nri?.startContainer(sandbox, container, pid),
    });
  });
  return {};
}

/** Commits the outcome of a start that an earlier daemon requested. @throws as the start does. */
export async function followStart(context: Context, container: Container): Promise<void> {
  const { id } = container;
  // The lock is not awaited yet: the start must be in context.starting before the first await.
  const lock = context.containers.lock(id);
  const args = { id, runtime: removalRuntime(context, container.runtimeHandler) };
  try {
    await commitStart(context, args, () => context.monitor.call("awaitStart", { id }));
  } finally {
    (await lock)[Symbol.dispose]();
  }
}

async function commitStart(
  context: Context,
  args: Pick<StartRequest, "id" | "runtime">,
  start: () => Promise<{ result: Started }>,
): Promise<void> {
  const { id } = args;
  const { promise: committed, resolve: commit } = Promise.withResolvers<void>();
  context.starting.set(id, committed);
  try {
    const { pid, startedAtNs } = (await start()).result;
    const started = await step("container-running", () =>
      context.containers.update(id, (old) => running(old, pid, startedAtNs), { happened: true }),
    );
    if (started === undefined) return;
    context.log.info("container started", { ...containerFields(context, started), pid });
    context.nri?.startedContainer(started);
  } catch (error) {
    const message = messageOf(error) + (await adviceOf(context, id, messageOf(error)));
    await removeFailedStart(context, args); // it may be running: perhaps only the response was lost
    const ended = (old: Container) => startFailed(old, message, String(nowNs()));
    await context.containers.update(id, ended, { happened: true });
    context.exits.exited(id);
    throw new CriError(codeOf(error), `cannot start container ${id}: ${message}`, { cause: error });
  } finally {
    context.starting.delete(id);
    commit();
  }
}

/** Returns advice for a cause that the runtime's message does not name: the runtime only sees its child end. */
async function adviceOf(context: Context, id: string, message: string): Promise<string> {
  const { containers, host, config } = context;
  const container = containers.find(id);
  const resources = container?.config.linux?.resources ?? {};
  const wanted = toBigInt(resources.oom_score_adj);
  const isInHost = container !== undefined && !isInGuest(container);
  const limits = isInHost ? controllerAdvice(ociResources(resources, [], host), host, message) : "";
  const isDenied = /permission denied|not found/i.test(message);
  const closed = container && isDenied ? await closedRootOf(context, container) : "";
  const root = closed === "" ? "" : `; ${closed}`;
  return root + limits + oomScoreAdjAdvice(wanted, host, config.restrictOomScoreAdj);
}

/** @throws CriError FAILED_PRECONDITION: a runtime would start it in the empty mount point and write there. */
function requireRootMounted(bundle: string): void {
  if (isRootMounted(bundle)) return;
  const message = `somebody has unmounted its root file system ${join(bundle, "rootfs")}: remove the container and create another`;
  throw new CriError("FAILED_PRECONDITION", message);
}

async function removeFailedStart(
  context: Context,
  { id, runtime }: Pick<StartRequest, "id" | "runtime">,
): Promise<void> {
  try {
    const { runtimeTimeoutMs: timeoutMs } = context.config;
    await callMonitorWithRetry(context, "remove", { id, runtime, timeoutMs });
  } catch (error) {
    // The next daemon's recovery kills what runs although its record says exited (recovery/rules.ts).
    const fields = { container: id, error: messageOf(error) };
    context.log.warn("rolling back a failed start failed, the next daemon retries", fields);
  }
}
