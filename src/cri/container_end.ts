// The end of containers: signals, waiting for the exit, and removal.
import { rm } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { abortError, untilAborted } from "../base/abort.ts";
import { CriError } from "../base/errors.ts";
import { step } from "../base/failpoints.ts";
import { killAll, killOnce, processes, survivors, type CgroupPaths } from "../node/cgroup.ts";
import { exited, startSeen } from "../state/container.ts";
import type { Container } from "../state/container.ts";
import type { ExitRecord } from "../monitor/protocol.ts";
import { notReady } from "../state/sandbox.ts";
import { catchesSignal, processAgeMs } from "../sys/process.ts";
import { signalNumber } from "../sys/signals.ts";
import { askAgain, forget } from "./monitor_retry.ts";
import type { Context } from "./context.ts";
import { containerCgroup } from "./facts.ts";
import { unmountImages } from "./image_volumes.ts";
import { stdioFolder } from "./pause.ts";

/** A process in uninterruptible sleep dies when the kernel lets it: it is reminded meanwhile. */
const remindMs = 2_000;
const SIGKILL = 9;
/**
 * How long after its process began a program may take to set its signal handlers up; the OCI runtime makes
 * the process some time before the program starts in it.
 */
const youngMs = 2_000;

/**
 * Sends the stop signal (once, however many callers there are), waits for timeoutMs, then kills: the
 * shortest timeout of the callers counts. Returns when the exit is committed and no process of the
 * container is left.
 * @throws CriError CANCELLED or DEADLINE_EXCEEDED with the caller's signal, DEADLINE_EXCEEDED when
 * processes survive SIGKILL for runtime-timeout; a later call goes on.
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
    const sent = context.exits.signalOnce(id, () => sendStopSignal(context, container, pid));
    await Promise.race([sent, ended]);
    await ended;
  }
  await killContainer(context, id, signal);
}

async function sendStopSignal(
  context: Context,
  { id, stopSignal }: Container,
  pid: number,
): Promise<void> {
  const signal = signalNumber(stopSignal);
  await handlesSignal(pid, signal);
  await step("container-signal", () => askAgain(context, "kill", { id, signal }));
}

/**
 * Waits until a process that has just been started catches the signal. It is the first one of its pid
 * namespace, so the kernel drops a signal that it has no handler for, and Stop would wait in vain.
 */
async function handlesSignal(pid: number, signal: number): Promise<void> {
  const ageMs = processAgeMs(pid) ?? youngMs;
  const end = performance.now() + youngMs - ageMs;
  while (performance.now() < end && !catchesSignal(pid, signal)) await sleep(10);
}

/** SIGKILL, and again until the exit is committed and no process is left. Throws as Stop does. */
export async function killContainer(
  context: Context,
  id: string,
  signal: AbortSignal,
): Promise<void> {
  const paths = cgroupOf(context, id);
  const starting = context.starting.get(id);
  if (starting !== undefined) {
    // Otherwise the container may come up when its Stop has been answered.
    killOnce(paths);
    await untilAborted(starting, `waiting for the start of container ${id} to end`, signal);
  }
  const deadline = AbortSignal.timeout(context.config.runtimeTimeoutMs);
  while (context.containers.find(id)?.phase.phase === "running") {
    const ended = context.exits.wait(id, remindMs, signal);
    const kill = { id, signal: SIGKILL };
    await step("container-kill", () => askAgain(context, "kill", kill));
    if (await ended) break;
    context.log.warn("container does not die yet", { container: id, left: survivors(paths) });
    if (deadline.aborted) throw abortError(`${survivors(paths)} of container ${id}`, deadline);
    killOnce(paths);
  }
  // What is in no pid namespace of the container's own outlives its first process.
  if (processes(paths).length === 0) return;
  await killAll(paths, AbortSignal.any([signal, deadline]));
}

function cgroupOf(context: Context, id: string): CgroupPaths {
  const container = context.containers.find(id);
  return container === undefined ? {} : containerCgroup(context, container);
}

/**
 * Commits what the monitor saw, before anybody who waits for it goes on. The outcome of a start comes
 * first, so that every container that has stopped was seen to start, and the first end that is told of
 * one is the only one.
 */
export async function commitExit(context: Context, id: string, exit: ExitRecord): Promise<void> {
  const happened = true;
  let isNews = false; // an exit may be told twice
  const end = (old: Container) => {
    isNews = old.phase.phase !== "exited";
    return exited(old, exit);
  };
  await context.starting.get(id);
  const { pid, startedAtNs } = exit;
  await context.containers.update(id, (old) => startSeen(old, pid, startedAtNs), { happened });
  const container = await step("container-exited", () =>
    context.containers.update(id, end, { happened }),
  );
  context.exits.exited(id);
  // A pause container goes by its sandbox's id.
  const message = `its pause container ended with exit code ${exit.exitCode}`;
  await context.sandboxes.update(id, (old) => notReady(old, message), { happened });
  if (container?.phase.phase !== "exited") return;
  const { reason, exitCode } = container.phase;
  if (isNews && reason === "OOMKilled") context.instruments.oomKilled();
  context.log.info("container exited", { container: id, exitCode, reason });
}

/** Kills what runs, then removes all that belongs to the container. Unknown: nothing to do. */
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
  await step("container-forget", () => forget(context, container, cgroup));
  await context.nri?.removeContainer(container);
  await step("container-rootfs-remove", () => unmountImages(context, id));
  await rm(stdioFolder(context, id), { recursive: true, force: true });
  await step("container-remove", () => context.containers.remove(id));
  context.log.info("container removed", { container: id, name: container.name });
}
