// Stops and removes containers, and commits their exits.
import { setTimeout as sleep } from "node:timers/promises";
import { abortError, untilAborted } from "../base/abort.ts";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import { step } from "../base/failpoints.ts";
import { killAll, killOnce, processes, survivors } from "../node/cgroup.ts";
import { exited, startSeen, type Container } from "../state/container.ts";
import type { ExitRecord } from "../monitor/protocol.ts";
import { isInGuest, notReady } from "../state/sandbox.ts";
import { untilHandled } from "../sys/process.ts";
import { signalNumber } from "../sys/signals.ts";
import { containerCgroup } from "./cgroups.ts";
import { stdioFolder, type Context } from "./context.ts";
import { containerFields } from "./log_subject.ts";
import { unmountImages } from "./image_volumes.ts";
import { callMonitorWithRetry, removeFromRuntime } from "./monitor_retry.ts";
import { closedRootOf } from "./rootfs_owner.ts";
import { removeTree } from "../sys/remove_tree.ts";

/** SIGKILL is repeated: a process in uninterruptible sleep may take it only later. */
const killAgainMs = 2_000;
const SIGKILL = 9;
/** Between two attempts to send the stop signal while the monitor or the shim cannot be reached. */
const signalAgainMs = 500;
/** Between two attempts to end a start. */
const cancelAgainMs = 500;

/**
 * Sends the stop signal, waits for timeoutMs, then kills. Concurrent callers send one signal, and the
 * shortest of their timeouts applies. A container whose signal cannot be sent is killed after timeoutMs, too: its
 * shim may hang. Returns when the exit is committed and the container has no process.
 * @throws CriError CANCELLED or DEADLINE_EXCEEDED with the caller's signal, DEADLINE_EXCEEDED when
 * processes survive SIGKILL for runtime-timeout; a later call resumes.
 */
export async function stopContainerProcess(
  context: Context,
  id: string,
  timeoutMs: number,
  signal: AbortSignal,
): Promise<void> {
  const container = context.containers.find(id);
  if (container?.phase.phase === "running" && timeoutMs > 0) {
    const { pid } = container.phase;
    const ended = context.exits.wait(id, timeoutMs, signal);
    const grace = AbortSignal.timeout(timeoutMs); // also when this caller leaves: others share the signal
    const send = () => sendStopSignal(context, container, pid, grace);
    context.exits.signalOnce(id, send).catch((error: unknown) => {
      const fields = { container: id, timeoutMs, error: messageOf(error) };
      context.log.warn("stop signal not sent, killing the container after its timeout", fields);
    });
    await ended;
  }
  await killContainer(context, id, signal);
}

/**
 * Sends the stop signal; retries until `grace` is over while the monitor or the shim is unavailable, but not after a
 * timeout, since the signal may have been delivered.
 */
async function sendStopSignal(
  context: Context,
  container: Container,
  pid: number,
  grace: AbortSignal,
): Promise<void> {
  const { id, stopSignal } = container;
  const signal = signalNumber(stopSignal);
  if (!isInGuest(container)) await untilHandled(pid, signal, grace);
  for (;;) {
    try {
      const send = () => callMonitorWithRetry(context, "kill", { id, signal });
      return await step("container-signal", send);
    } catch (error) {
      if (codeOf(error) !== "UNAVAILABLE" || grace.aborted) throw error;
    }
    await sleep(signalAgainMs);
  }
}

/**
 * Ends a start under way, for which a runtime may take as long as start-timeout, and waits for its outcome: otherwise
 * the container could come up after Stop has returned. It may not have reached the monitor yet, hence the repetition.
 */
export async function endStart(context: Context, id: string, signal: AbortSignal): Promise<void> {
  const starting = context.starting.get(id);
  if (starting === undefined) return;
  const what = `waiting for the start of container ${id} to end`;
  // A monitor of an earlier build does not know the call: its start ends by itself.
  const cancel = () => {
    context.monitor.call("cancelStart", { id }).catch(() => {});
  };
  cancel();
  const timer = setInterval(cancel, cancelAgainMs);
  try {
    await untilAborted(starting, what, signal);
  } finally {
    clearInterval(timer);
  }
}

/** Repeats SIGKILL until the exit is committed and no process is left. Throws as Stop does. */
export async function killContainer(
  context: Context,
  id: string,
  signal: AbortSignal,
): Promise<void> {
  const container = context.containers.find(id);
  const paths = container === undefined ? {} : containerCgroup(context, container);
  if (context.starting.has(id)) killOnce(paths);
  await endStart(context, id, signal);
  const deadline = AbortSignal.timeout(context.config.runtimeTimeoutMs);
  while (context.containers.find(id)?.phase.phase === "running") {
    const ended = context.exits.wait(id, killAgainMs, signal);
    const kill = { id, signal: SIGKILL };
    await step("container-kill", () => callMonitorWithRetry(context, "kill", kill));
    if (await ended) break;
    const left = survivors(paths);
    context.log.warn("container survives SIGKILL, sending it again", { container: id, left });
    if (deadline.aborted) throw abortError(`${left} of container ${id}`, deadline);
    killOnce(paths);
  }
  // In a shared pid namespace, processes outlive the first process of the container.
  if (processes(paths).length === 0) return;
  await killAll(paths, AbortSignal.any([signal, deadline]));
}

/**
 * Commits an exit that the monitor reports, then wakes its waiters. The outcome of a start is committed
 * first, so that no client sees a container stop that never ran. Only the first report of an exit counts.
 */
export async function commitExit(context: Context, id: string, exit: ExitRecord): Promise<void> {
  const happened = true;
  let isFirst = false;
  const end = (old: Container) => {
    isFirst = old.phase.phase !== "exited";
    return exited(old, { ...exit, problem });
  };
  const problem = exit.problem ?? (await exitProblem(context, id, exit.exitCode));
  await context.starting.get(id);
  const { pid, startedAtNs } = exit;
  await context.containers.update(id, (old) => startSeen(old, pid, startedAtNs), { happened });
  const container = await step("container-exited", () =>
    context.containers.update(id, end, { happened }),
  );
  context.exits.exited(id);
  // A pause container has the id of its sandbox.
  const message = `its pause container ended with exit code ${exit.exitCode}`;
  await context.sandboxes.update(id, (old) => notReady(old, message), { happened });
  if (container?.phase.phase !== "exited") return;
  const { reason, exitCode } = container.phase;
  if (isFirst && reason === "OOMKilled") context.instruments.oomKilled();
  context.log.info("container exited", {
    ...containerFields(context, container),
    exitCode,
    reason,
  });
}

/** Returns why a program could do nothing, where its exit code does not say it; undefined if no reason is known. */
async function exitProblem(
  context: Context,
  id: string,
  exitCode: number,
): Promise<string | undefined> {
  const container = context.containers.find(id);
  if (container === undefined || exitCode === 0 || exitCode > 127) return undefined;
  return (await closedRootOf(context, container)) || undefined;
}

/** Kills the container and removes everything that belongs to it. An unknown id is no error. */
export async function removeContainerRecord(
  context: Context,
  id: string,
  signal: AbortSignal,
): Promise<void> {
  if (context.starting.has(id)) {
    throw new CriError("FAILED_PRECONDITION", `container ${id} is starting: try again`);
  }
  await context.ending.join(`remove container ${id}`, signal, () => remove(context, id, signal));
}

async function remove(context: Context, id: string, signal: AbortSignal): Promise<void> {
  using _ = await context.containers.lock(id);
  const container = context.containers.find(id);
  if (container === undefined) return;
  await killContainer(context, id, signal);
  const cgroup = containerCgroup(context, container);
  await step("container-forget", () => removeFromRuntime(context, container, cgroup));
  await context.nri?.removeContainer(container);
  await step("container-rootfs-remove", () => unmountImages(context, id));
  await removeTree(stdioFolder(context, id));
  await step("container-remove", () => context.containers.remove(id));
  context.log.info("container removed", containerFields(context, container));
}
