// Runs execs in containers: ExecSync, whose output is captured up to a bound, and execs with the daemon's
// streams. Each is killed with all its descendants at its timeout, or when its caller has disconnected.
import { codeOf, CriError } from "../base/errors.ts";
import type { Released } from "../sys/descriptor.ts";
import { hasEnded } from "../sys/process.ts";
import { Captures } from "./captures.ts";
import type { LogWorkers } from "./log_workers.ts";
import type {
  ExecProcess,
  ExecRequest,
  ExecResult,
  ExecSubject,
  StartExecRequest,
} from "./protocol.ts";
import type { RunRecord } from "./record_schemas.ts";

/** Limit for the runtime's start of the process, whatever the caller's limit is. */
const startTimeoutMs = 60_000;

/** A started exec. */
export type RunningExec = {
  process: ExecProcess;
  exited: Promise<{ exitCode: number }>;
  /** Kills the process with all its descendants. */
  kill: () => Promise<void>;
  /** Lets go of the streams; called after the exit, once the output was read. */
  close?: () => Promise<void>;
};

/** Streams whose output is captured; disposed of once the process has its own ends. */
export type CapturedStreams<Streams> = Disposable & {
  streams: Streams;
  readers: { stdout: Released; stderr: Released };
};

/** Starts the processes of one kind of runtime: oci_exec.ts, shim_exec.ts. */
export interface ExecStarter<Streams> {
  /** A shim copies the output, and closes the streams at its end. */
  readonly isCopied: boolean;
  openCaptured(request: ExecSubject): CapturedStreams<Streams>;
  openCallers(request: StartExecRequest): Disposable & { streams: Streams };
  start(
    container: RunRecord,
    request: ExecSubject,
    options: { streams: Streams; timeoutMs: number; signal: AbortSignal },
  ): Promise<RunningExec>;
}

type Output = { result: ExecResult; stdout: Uint8Array; stderr: Uint8Array };

export class Execs {
  readonly #captures: Captures;
  readonly #starterFor: (container: RunRecord) => Promise<ExecStarter<unknown>>;
  readonly #kills = new Map<string, () => void>();
  /** The ends of execs that start() has started and whose wait() has not returned. */
  readonly #ends = new Map<string, Promise<{ exitCode: number }>>();

  constructor(
    workers: LogWorkers,
    starterFor: (container: RunRecord) => Promise<ExecStarter<unknown>>,
  ) {
    this.#captures = new Captures(workers);
    this.#starterFor = starterFor;
  }

  /** Keys of the execs that run, and of those that ended and were not let go of yet. */
  get open(): string[] {
    return [...this.#kills.keys()];
  }

  /** Kills an exec whose caller has cancelled it; lets go of one that has ended and whose output was read. */
  cancel(key: string): void {
    this.#kills.get(key)?.();
  }

  /** True while the exec runs, and until the caller has let go of one that a shim keeps. */
  isOpen(key: string): boolean {
    return this.#kills.has(key);
  }

  /** Kills an exec whose caller has disconnected, and forgets its end. */
  abandon(key: string): void {
    this.cancel(key);
    this.#ends.delete(key);
  }

  /** Starts an exec with the caller's streams. */
  async start(container: RunRecord, request: StartExecRequest): Promise<ExecProcess> {
    const { key } = request;
    const cancelled = this.#cancellable(key);
    try {
      const starter = await this.#starterFor(container);
      using ends = starter.openCallers(request);
      const started = await startExec(starter, container, request, {
        streams: ends.streams,
        timeoutMs: startTimeoutMs,
        signal: cancelled,
      });
      const end = this.#wait(started, { key, deadline: Infinity, cancelled });
      end.then(() => this.#closeLater(key, started)).catch(() => {}); // wait() rejects as well
      this.#ends.set(key, end);
      return started.process;
    } catch (error) {
      this.#kills.delete(key);
      throw error;
    }
  }

  /** Keeps the streams until the caller has read the output at its own pace, and then cancels or abandons the exec. */
  #closeLater(key: string, { close }: RunningExec): void {
    if (close === undefined) return;
    const closeNow = () => {
      this.#kills.delete(key);
      close().catch(() => {}); // best effort, as in run()
    };
    if (this.#ends.has(key)) this.#kills.set(key, closeNow);
    else closeNow(); // abandoned before its end
  }

  /** @throws CriError NOT_FOUND for an exec that was not started, or whose end was returned before. */
  async wait(key: string): Promise<{ exitCode: number }> {
    const end = this.#ends.get(key);
    if (end === undefined) {
      const message = `exec ${key} was not started, or its end was returned before`;
      throw new CriError("NOT_FOUND", message);
    }
    try {
      return { exitCode: (await end).exitCode };
    } finally {
      this.#ends.delete(key);
    }
  }

  async run(container: RunRecord, request: ExecRequest): Promise<Output> {
    const cancelled = this.#cancellable(request.key); // before any await: a cancel may follow at once
    try {
      return await this.#run(container, request, cancelled);
    } finally {
      this.#kills.delete(request.key);
    }
  }

  async #run(container: RunRecord, request: ExecRequest, cancelled: AbortSignal): Promise<Output> {
    const id = `exec-${request.key}`;
    const starter = await this.#starterFor(container);
    using captured = starter.openCaptured(request);
    const { maxOutputBytes: maxBytes, outputFile: file } = request;
    this.#captures.capture({ id, ...captured.readers, maxBytes, file });
    const running = this.#runCaptured(container, request, { starter, captured, cancelled });
    // The output is collected even if the exec fails: otherwise its streams would stay open.
    const [ran] = await Promise.allSettled([running]);
    const limit = { isCopied: starter.isCopied, drainMs: request.drainMs };
    const { stdout, stderr, inFile, cut } = await this.#captures.collect(id, limit);
    if (ran.status === "rejected") throw ran.reason; // the caller removes the file
    const { started, ...result } = ran.value;
    await started?.close?.();
    const stdoutBytes = inFile?.stdoutBytes ?? stdout.length;
    return { result: { ...result, stdoutBytes, inFile, cut }, stdout, stderr };
  }

  async #runCaptured(
    container: RunRecord,
    request: ExecRequest,
    parts: {
      starter: ExecStarter<unknown>;
      captured: CapturedStreams<unknown>;
      cancelled: AbortSignal;
    },
  ): Promise<{ exitCode: number; timedOut: boolean; started?: RunningExec }> {
    const { key, timeoutMs } = request;
    const { starter, captured, cancelled } = parts;
    const deadline = timeoutMs === 0 ? Infinity : performance.now() + timeoutMs;
    let started: RunningExec;
    try {
      started = await startExec(starter, container, request, {
        streams: captured.streams,
        timeoutMs: Math.min(startTimeoutMs, timeoutMs || startTimeoutMs),
        signal: cancelled,
      });
    } catch (error) {
      if (performance.now() < deadline) throw error;
      return { exitCode: 137, timedOut: true };
    } finally {
      captured[Symbol.dispose](); // an open writer would hide the end of the output
    }
    return { ...(await this.#wait(started, { key, deadline, cancelled })), started };
  }

  #cancellable(key: string): AbortSignal {
    const cancelled = new AbortController();
    this.#kills.set(key, () => cancelled.abort());
    return cancelled.signal;
  }

  async #wait(
    { exited, kill }: RunningExec,
    { key, deadline, cancelled }: { key: string; deadline: number; cancelled: AbortSignal },
  ): Promise<{ exitCode: number; timedOut: boolean }> {
    let killed: Promise<void> | undefined;
    const end = () => {
      killed ??= kill();
      killed.catch(() => {}); // awaited below
    };
    this.#kills.set(key, end);
    const timer =
      deadline === Infinity
        ? undefined
        : setTimeout(end, Math.max(0, deadline - performance.now()));
    if (cancelled.aborted) end(); // cancelled while the runtime was ending
    try {
      const { exitCode } = await exited.finally(() => {
        clearTimeout(timer);
        this.#kills.delete(key);
      });
      await killed;
      return { exitCode, timedOut: killed !== undefined };
    } finally {
      clearTimeout(timer);
    }
  }
}

/** @throws CriError FAILED_PRECONDITION for a container that ended meanwhile, whatever its runtime says then. */
async function startExec<Streams>(
  starter: ExecStarter<Streams>,
  container: RunRecord,
  request: ExecSubject,
  options: { streams: Streams; timeoutMs: number; signal: AbortSignal },
): Promise<RunningExec> {
  try {
    return await starter.start(container, request, options);
  } catch (error) {
    if (codeOf(error) !== "UNKNOWN" || !hasEnded(container.pid)) throw error;
    const message = `container ${container.id} ended while the exec was started`;
    throw new CriError("FAILED_PRECONDITION", message, { cause: error });
  }
}
