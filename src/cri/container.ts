// RPCs on a created container: Stop, Remove, ReopenContainerLog, Checkpoint.
import { join } from "node:path";
import { CriError } from "../base/errors.ts";
import { quoted } from "../base/text.ts";
import { writeCheckpoint } from "../node/checkpoint.ts";
import { callRuntime } from "../node/oci_runtime.ts";
import type * as cri from "../proto/types.ts";
import type { Container } from "../state/container.ts";
import { isByShim, isInGuest } from "../state/sandbox.ts";
import { specFile } from "./bundle.ts";
import { removeContainerRecord, stopContainerProcess } from "./container_end.ts";
import type { Call, Context } from "./context.ts";
import { requireRunning, timeoutMsOf } from "./preconditions.ts";
import { handlerOf } from "./runtime_handlers.ts";

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
