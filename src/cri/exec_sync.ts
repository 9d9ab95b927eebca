// ExecSync: runs a command in a container, and returns its exit code and the beginning of its output.
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { abortError, throwIfAborted } from "../base/abort.ts";
import { CriError, codeOf, messageOf } from "../base/errors.ts";
import { toBigInt } from "../base/int64.ts";
import type * as cri from "../proto/types.ts";
import { execProcess, ociJson } from "../spec/oci.ts";
import { readSpec } from "./bundle.ts";
import { newId, type Call, type Context } from "./context.ts";
import { execOutput, outputsFolder } from "../monitor_client/exec_output.ts";
import { commandFields, containerFields } from "./log_subject.ts";
import { requireRunning, timeoutMsOf } from "./preconditions.ts";
import type { SlicedResponse } from "../base/sliced_response.ts";

/** Keeps the response within the 16 MiB that kubelets accept; its framing takes at most 16 bytes. */
const outputBytesMax = (16 << 20) - 64;

export async function execSync(
  context: Context,
  request: cri.ExecSyncRequest,
  call: Call,
): Promise<cri.ExecSyncResponse | SlicedResponse> {
  const { id } = requireRunning(context.containers.get(request.container_id ?? ""));
  const what = `exec in container ${id}`;
  const key = newId();
  const outputFile = join(outputsFolder(context.config.graph), key);
  try {
    return await run(context, request, { id, key, what, outputFile, signal: call.signal });
  } catch (error) {
    await rm(outputFile, { force: true });
    if (error instanceof CriError && error.code !== "UNKNOWN") throw error;
    throw new CriError(codeOf(error), `${what}: ${messageOf(error)}`, { cause: error });
  }
}

type Exec = { id: string; key: string; what: string; outputFile: string; signal: AbortSignal };

async function run(
  context: Context,
  request: cri.ExecSyncRequest,
  { id, key, what, outputFile, signal }: Exec,
): Promise<cri.ExecSyncResponse | SlicedResponse> {
  const { process } = await readSpec(context, id);
  const beginMs = performance.now();
  throwIfAborted(what, signal);
  const onAbort = () => {
    context.monitor.call("cancelExec", { key }).catch(() => {});
  };
  signal.addEventListener("abort", onAbort, { once: true });
  try {
    const { result, body } = await context.monitor.call("exec", {
      id,
      key,
      process: ociJson(execProcess(process, request.cmd ?? [], false)),
      timeoutMs: timeoutMsOf(request.timeout, 0),
      maxOutputBytes: outputBytesMax,
      drainMs: context.config.drainExecSyncIoMs,
      outputFile,
    });
    if (signal.aborted) throw abortError(what, signal);
    if (result.timedOut) {
      const message = `${what}: killed after ${toBigInt(request.timeout)} s`;
      throw new CriError("DEADLINE_EXCEEDED", message);
    }
    const { exitCode, stdoutBytes, inFile, cut } = result;
    const ms = Math.round(performance.now() - beginMs);
    const container = context.containers.get(id);
    const subject = { ...containerFields(context, container), ...commandFields(request.cmd) };
    context.log.debug("exec ended", { ...subject, exitCode, ms });
    if (cut !== undefined) {
      context.log.warn("the end of an exec's output was not kept", { ...subject, error: cut });
    }
    if (inFile !== undefined) return await execOutput(outputFile, inFile, exitCode);
    const [stdout, stderr] = [body.subarray(0, stdoutBytes), body.subarray(stdoutBytes)];
    return { exit_code: exitCode, stdout, stderr };
  } finally {
    signal.removeEventListener("abort", onAbort);
  }
}
