// Supervises child processes: awaits an exit with a deadline, kills what does not end, keeps stderr's end.
import type { ChildProcess } from "node:child_process";
import { constants } from "node:os";
import { abortError } from "../base/abort.ts";
import { codeOf, CriError, errnoOf, messageOf, type ErrorCode } from "../base/errors.ts";
import { clipStart } from "../base/text.ts";
import { tooManyFiles } from "./children.ts";
import { killGroup, processName } from "./process.ts";

/** Grace between SIGKILL and giving the process up: one in uninterruptible sleep does not end. */
const killedMs = 5_000;
/** Grace between a process's exit and the end of its streams, which a grandchild may keep open. */
const drainMs = 100;

/**
 * Waits for the exit of a process that leads its group, and kills the group when the signal aborts. what: program and
 * arguments, for messages.
 * @returns the exit code; like a shell, 128 + n for signal n.
 * @throws CriError DEADLINE_EXCEEDED or CANCELLED with pid and elapsed time; the error of a failed start.
 */
export async function superviseGroup(
  child: ChildProcess,
  what: string,
  signal: AbortSignal,
): Promise<number> {
  const begin = performance.now();
  const stuck = Promise.withResolvers<never>();
  let timer: ReturnType<typeof setTimeout> | undefined;
  const onAbort = () => {
    if (child.pid !== undefined) killGroup(child.pid);
    timer = setTimeout(() => {
      stuck.reject(unkillable(what, child.pid, signal));
      closeStreams(child);
    }, killedMs);
  };
  signal.addEventListener("abort", onAbort, { once: true });
  try {
    const exitCode = await Promise.race([exitOf(child), stuck.promise]);
    if (!signal.aborted) return exitCode;
    throw abortError(`${what} (pid ${child.pid})`, signal, performance.now() - begin);
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", onAbort);
  }
}

/**
 * Explains why a program could not be started; returns the error of a program that ran unchanged. code: replaced by
 * RESOURCE_EXHAUSTED if the node is out of descriptors, memory or space, or if a limit of the cgroup or the user
 * allows no further process (EAGAIN).
 */
export function cannotRun(program: string, cause: unknown, code: ErrorCode): CriError {
  if (cause instanceof CriError) return cause;
  const isExhausted = codeOf(cause) === "RESOURCE_EXHAUSTED" || errnoOf(cause) === "EAGAIN";
  const lacksFiles = ["EMFILE", "ENFILE"].includes(errnoOf(cause) ?? "");
  const message = `cannot run ${program}: ${lacksFiles ? tooManyFiles : messageOf(cause)}`;
  return new CriError(isExhausted ? "RESOURCE_EXHAUSTED" : code, message, { cause });
}

/** Waits for the end of a process that was asked to end; calls `kill` after graceMs. */
export async function endWithin(
  ended: Promise<unknown>,
  graceMs: number,
  kill: () => void,
): Promise<void> {
  const timer = setTimeout(kill, graceMs);
  await ended.finally(() => clearTimeout(timer));
}

/** Keeps the last bytes of a stream, for a message. @returns a function that returns them. */
export function keepEnd(stream: NodeJS.ReadableStream, bytesMax: number): () => string {
  let text = "";
  stream.on("data", (chunk: Buffer) => {
    text = clipStart(text + chunk.toString("utf8"), bytesMax);
  });
  return () => text;
}

function exitOf(child: ChildProcess): Promise<number> {
  return new Promise((resolve, reject) => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const done = (exitCode: number | null, signal: NodeJS.Signals | null) => {
      clearTimeout(timer);
      closeStreams(child);
      resolve(exitCode ?? (signal === null ? 255 : 128 + constants.signals[signal]));
    };
    const hasStreams = child.stdout !== null || child.stderr !== null;
    child.on("error", reject);
    child.on("close", done);
    child.on("exit", (exitCode, signal) => {
      timer = setTimeout(() => done(exitCode, signal), hasStreams ? drainMs : 0);
    });
  });
}

function closeStreams(child: ChildProcess): void {
  child.stdout?.destroy();
  child.stderr?.destroy();
}

function unkillable(what: string, pid: number | undefined, signal: AbortSignal): CriError {
  const state = pid === undefined ? "" : `: ${processName(pid)}`;
  const stuck = `${what} (pid ${pid}), which SIGKILL does not end${state}`;
  const { code, message } = abortError(stuck, signal);
  const hint = "it waits in the kernel for a disk or a device; the kernel's log may name it";
  return new CriError(code, `${message}; ${hint}`);
}
