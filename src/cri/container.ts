// The RPCs on a container that was made: Start, Stop, Remove, ExecSync, its log, checkpoints of it.
import { join } from "node:path";
import { abortError, throwIfAborted } from "../base/abort.ts";
import { CriError, codeOf, messageOf } from "../base/errors.ts";
import { nowNs } from "../base/clock.ts";
import { toBigInt } from "../base/int64.ts";
import { step } from "../base/failpoints.ts";
import { isRootMounted } from "../layer/rootfs.ts";
import type { Started, StartRequest } from "../monitor/protocol.ts";
import { writeCheckpoint } from "../node/checkpoint.ts";
import type { RuntimeCommand } from "../node/oci_runtime.ts";
import type {
  CheckpointContainerRequest,
  ExecSyncRequest,
  ExecSyncResponse,
  RemoveContainerRequest,
  ReopenContainerLogRequest,
  StartContainerRequest,
  StopContainerRequest,
} from "../proto/types.ts";
import { execProcess, ociJson } from "../spec/oci.ts";
import { running, startFailed, type Container } from "../state/container.ts";
import type { Sandbox } from "../state/sandbox.ts";
import { askAgain } from "./monitor_retry.ts";
import { readSpec, specFile } from "./bundle.ts";
import { removeContainerRecord, stopContainerProcess } from "./container_end.ts";
import { readySandbox, targetPid } from "./container_create.ts";
import { handlerOf, newId, removingCommand, type Call, type Context } from "./context.ts";
import { containerCgroup, rootfsOwner } from "./facts.ts";
import { stdioFolder } from "./pause.ts";

/** Both streams stay under the 16 MiB that a kubelet's client takes; ExecSyncResponse adds 16 bytes at most. */
const execOutputBytes = (16 << 20) - 64;
/** 24 days. A timer takes 31 bits of milliseconds, and fires at once when it is given more. */
const timeoutSecondsMax = 2_147_483n;

export async function startContainer(
  context: Context,
  request: StartContainerRequest,
): Promise<object> {
  const { id } = context.containers.get(request.container_id ?? "");
  using _ = await context.nri?.enter();
  await start(context, id);
  return {};
}

async function start(context: Context, id: string): Promise<void> {
  using _ = await context.containers.lock(id);
  const container = context.containers.get(id);
  if (container.phase.phase !== "created") {
    const message = `container ${id} is ${container.phase.phase}, and is started only once: create another`;
    throw new CriError("FAILED_PRECONDITION", message);
  }
  const sandbox = await readySandbox(context, container.sandboxId);
  targetPid(context, container); // the spec names the pid that it had when it was made
  const { command } = handlerOf(context, container.runtimeHandler);
  const args = startRequest(context, container, { sandbox, runtime: command });
  await commitStart(context, args, async () => {
    checkRoot(args.bundle);
    await context.nri?.startContainer(sandbox, container);
    return step("container-start", () => context.monitor.call("start", args));
  });
}

/** Waits for a start that an earlier daemon asked for, and commits its outcome. @throws as the start does. */
export async function followStart(context: Context, container: Container): Promise<void> {
  const { id, runtimeHandler } = container;
  // Asked for and not awaited yet: the start is to be known as one under way when this returns.
  const lock = context.containers.lock(id);
  const args = { id, runtime: removingCommand(context, runtimeHandler) };
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
    context.log.info("container started", { container: id, pid });
    if (started !== undefined) context.nri?.startedContainer(started);
  } catch (error) {
    const message = messageOf(error);
    // It may run all the same: what failed may have been the answer.
    await endFailedStart(context, args);
    await context.containers.update(id, (old) => startFailed(old, message, String(nowNs())), {
      happened: true,
    });
    context.exits.exited(id);
    context.log.warn("container did not start", { container: id, error: message });
    throw new CriError(codeOf(error), `cannot start container ${id}: ${message}`, { cause: error });
  } finally {
    context.starting.delete(id);
    commit();
  }
}

/** A runtime would start it in the bare folder, and fill that. @throws CriError FAILED_PRECONDITION. */
function checkRoot(bundle: string): void {
  if (isRootMounted(bundle)) return;
  throw new CriError(
    "FAILED_PRECONDITION",
    `somebody has unmounted its root file system ${join(bundle, "rootfs")}: remove the container and create another`,
  );
}

/** What the monitor is told of a container. */
export function startRequest(
  context: Context,
  container: Container,
  { sandbox, runtime: command }: { sandbox: Sandbox | undefined; runtime: RuntimeCommand },
): StartRequest {
  const { id } = container;
  const owner = sandbox && rootfsOwner(sandbox);
  return {
    id,
    runtime: command,
    bundle: context.containers.folderOf(id),
    stdio: stdioFolder(context, id),
    logPath: container.logPath,
    stdin: container.config.stdin === true,
    terminal: container.config.tty === true,
    ...(owner === undefined ? {} : { owner: { uid: owner.uid, gid: owner.gid } }),
    label: container.selinux?.mount,
    cgroup: containerCgroup(context, container),
    timeoutMs: context.config.startTimeoutMs,
  };
}

async function endFailedStart(
  context: Context,
  { id, runtime }: Pick<StartRequest, "id" | "runtime">,
): Promise<void> {
  try {
    const { runtimeTimeoutMs: timeoutMs } = context.config;
    await askAgain(context, "remove", { id, runtime, timeoutMs });
  } catch (error) {
    // Recovery ends what runs although its record says that it has exited (recovery/rules.ts).
    context.log.warn("a failed start was not undone yet", {
      container: id,
      error: messageOf(error),
    });
  }
}

export async function stopContainer(
  context: Context,
  request: StopContainerRequest,
  call: Call,
): Promise<object> {
  const container = context.containers.find(request.container_id ?? "");
  if (container === undefined) return {};
  const seconds = toBigInt(request.timeout);
  const timeoutMs = Number(seconds < timeoutSecondsMax ? seconds : timeoutSecondsMax) * 1000;
  await stopContainerProcess(context, container.id, timeoutMs, call.signal);
  return {};
}

export async function removeContainer(
  context: Context,
  request: RemoveContainerRequest,
  call: Call,
): Promise<object> {
  const container = context.containers.find(request.container_id ?? "");
  if (container !== undefined) await removeContainerRecord(context, container.id, call.signal);
  return {};
}

export async function reopenContainerLog(
  context: Context,
  request: ReopenContainerLogRequest,
): Promise<object> {
  const { id } = runningContainer(context, request.container_id ?? "");
  await context.monitor.call("reopenLog", { id });
  return {};
}

export async function execSync(
  context: Context,
  request: ExecSyncRequest,
  call: Call,
): Promise<ExecSyncResponse> {
  const { id } = runningContainer(context, request.container_id ?? "");
  const seconds = toBigInt(request.timeout);
  const { process } = await readSpec(context, id);
  throwIfAborted(`exec in container ${id}`, call.signal);
  const key = newId();
  const onAbort = () => {
    context.monitor.call("cancelExec", { key }).catch(() => {});
  };
  call.signal.addEventListener("abort", onAbort, { once: true });
  try {
    const { result, body } = await context.monitor.call("exec", {
      id,
      key,
      process: ociJson(execProcess(process, request.cmd ?? [], false)),
      timeoutMs: seconds > timeoutSecondsMax ? 0 : Number(seconds) * 1000,
      maxOutputBytes: execOutputBytes,
    });
    if (call.signal.aborted) throw abortError(`exec in container ${id}`, call.signal);
    if (result.timedOut) {
      throw new CriError("DEADLINE_EXCEEDED", `exec in container ${id}: killed after ${seconds} s`);
    }
    const { exitCode: exit_code, stdoutBytes } = result;
    return { exit_code, stdout: body.subarray(0, stdoutBytes), stderr: body.subarray(stdoutBytes) };
  } catch (error) {
    if (error instanceof CriError && error.code !== "UNKNOWN") throw error;
    throw new CriError(codeOf(error), `exec in container ${id}: ${messageOf(error)}`, {
      cause: error,
    });
  } finally {
    call.signal.removeEventListener("abort", onAbort);
  }
}

export async function checkpointContainer(
  context: Context,
  request: CheckpointContainerRequest,
  call: Call,
): Promise<object> {
  const { id } = context.containers.get(request.container_id ?? "");
  using _ = await context.containers.lock(id);
  const { runtimeHandler } = runningContainer(context, id);
  const seconds = toBigInt(request.timeout);
  const timeoutMs =
    seconds === 0n || seconds > timeoutSecondsMax
      ? context.config.runtimeTimeoutMs
      : Number(seconds) * 1000;
  await writeCheckpoint({
    id,
    runtime: handlerOf(context, runtimeHandler).command,
    specFile: specFile(context, id),
    scratch: join(context.containers.folderOf(id), "checkpoint"),
    location: request.location!,
    signal: AbortSignal.any([call.signal, AbortSignal.timeout(timeoutMs)]),
  });
  context.log.info("checkpoint written", { container: id, location: request.location! });
  return {};
}

/** @throws CriError NOT_FOUND, or FAILED_PRECONDITION when it does not run. */
export function runningContainer(context: Context, id: string): Container {
  const container = context.containers.get(id);
  const { phase } = container;
  if (phase.phase === "running") return container;
  const how = phase.phase === "exited" ? ` (${phase.reason}, exit code ${phase.exitCode})` : "";
  throw new CriError(
    "FAILED_PRECONDITION",
    `container ${container.id} is ${phase.phase}${how}, not running`,
  );
}
