// RPCs on a created container: Stop, Remove, ReopenContainerLog, ExecSync, Checkpoint.
import { join } from "node:path";
import { abortError, throwIfAborted } from "../base/abort.ts";
import { CriError, codeOf, messageOf } from "../base/errors.ts";
import { toBigInt } from "../base/int64.ts";
import { quoted } from "../base/text.ts";
import { writeCheckpoint } from "../node/checkpoint.ts";
import { callRuntime } from "../node/oci_runtime.ts";
import type * as cri from "../proto/types.ts";
import { execProcess, ociJson } from "../spec/oci.ts";
import type { Container } from "../state/container.ts";
import { isByShim, isInGuest } from "../state/sandbox.ts";
import { readSpec, specFile } from "./bundle.ts";
import { removeContainerRecord, stopContainerProcess } from "./container_end.ts";
import { newId, type Call, type Context } from "./context.ts";
import { commandFields, containerFields } from "./log_subject.ts";
import { requireRunning, timeoutMsOf } from "./preconditions.ts";
import { handlerOf } from "./runtime_handlers.ts";

/** Keeps the response within the 16 MiB that kubelets accept; its framing takes at most 16 bytes. */
const execOutputBytes = (16 << 20) - 64;

export async function stopContainer(
  context: Context,
  request: cri.StopContainerRequest,
  call: Call,
): Promise<object> {
  const container = context.containers.find(request.container_id ?? "");
  if (container === undefined) return {};
  await stopContainerProcess(context, container.id, timeoutMsOf(request.timeout), call.signal);
  return {};
}

export async function removeContainer(
  context: Context,
  request: cri.RemoveContainerRequest,
  call: Call,
): Promise<object> {
  const container = context.containers.find(request.container_id ?? "");
  if (container !== undefined) await removeContainerRecord(context, container.id, call.signal);
  return {};
}

export async function reopenContainerLog(
  context: Context,
  request: cri.ReopenContainerLogRequest,
): Promise<object> {
  const { id } = requireRunning(context.containers.get(request.container_id ?? ""));
  await context.monitor.call("reopenLog", { id });
  return {};
}

export async function execSync(
  context: Context,
  request: cri.ExecSyncRequest,
  call: Call,
): Promise<cri.ExecSyncResponse> {
  const container = requireRunning(context.containers.get(request.container_id ?? ""));
  const { id } = container;
  const { process } = await readSpec(context, id);
  const beginMs = performance.now();
  const what = `exec in container ${id}`;
  throwIfAborted(what, call.signal);
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
      timeoutMs: timeoutMsOf(request.timeout, 0),
      maxOutputBytes: execOutputBytes,
      drainMs: context.config.drainExecSyncIoMs,
    });
    if (call.signal.aborted) throw abortError(what, call.signal);
    if (result.timedOut) {
      const message = `${what}: killed after ${toBigInt(request.timeout)} s`;
      throw new CriError("DEADLINE_EXCEEDED", message);
    }
    const { exitCode: exit_code, stdoutBytes } = result;
    const ms = Math.round(performance.now() - beginMs);
    const subject = { ...containerFields(context, container), ...commandFields(request.cmd) };
    context.log.debug("exec ended", { ...subject, exitCode: exit_code, ms });
    return { exit_code, stdout: body.subarray(0, stdoutBytes), stderr: body.subarray(stdoutBytes) };
  } catch (error) {
    if (error instanceof CriError && error.code !== "UNKNOWN") throw error;
    throw new CriError(codeOf(error), `${what}: ${messageOf(error)}`, { cause: error });
  } finally {
    call.signal.removeEventListener("abort", onAbort);
  }
}

type Dump = { images: string; work: string; timeoutMs: number; signal: AbortSignal };

async function dump(context: Context, container: Container, options: Dump): Promise<void> {
  const { id } = container;
  if (isByShim(container)) {
    const { checkpointTask } = await import("./task_calls.ts");
    return await checkpointTask(context, id, options);
  }
  const verb = ["checkpoint", "--leave-running", "--tcp-established", "--file-locks"];
  verb.push("--image-path", options.images, "--work-path", options.work, id);
  const logFile = join(options.work, "runtime.log");
  const { command } = handlerOf(context, container);
  await callRuntime(command, verb, { logFile, signal: options.signal });
}

/** @throws CriError UNIMPLEMENTED: a guest's processes are not this kernel's, which criu checkpoints. */
function requireCheckpoints(container: Container): void {
  if (!isInGuest(container)) return;
  const message = `containers of runtime handler ${quoted(container.runtimeHandler)} run in a guest and cannot be checkpointed`;
  throw new CriError("UNIMPLEMENTED", message);
}

export async function checkpointContainer(
  context: Context,
  request: cri.CheckpointContainerRequest,
  call: Call,
): Promise<object> {
  const { id } = context.containers.get(request.container_id ?? "");
  using _ = await context.containers.lock(id, call.signal);
  const container = requireRunning(context.containers.get(id));
  requireCheckpoints(container);
  const { runtimeTimeoutMs } = context.config;
  const timeoutMs = timeoutMsOf(request.timeout, runtimeTimeoutMs) || runtimeTimeoutMs;
  const signal = AbortSignal.any([call.signal, AbortSignal.timeout(timeoutMs)]);
  const { criu = {} } = handlerOf(context, container).command;
  await writeCheckpoint({
    dump: (folders) => dump(context, container, { ...folders, timeoutMs, signal }),
    specFile: specFile(context, id),
    scratch: join(criu.images ?? context.containers.folderOf(id), `checkpoint-${id}`),
    work: criu.work === undefined ? undefined : join(criu.work, id),
    location: request.location!,
    signal,
  });
  context.log.info("checkpoint written", { container: id, location: request.location! });
  return {};
}
