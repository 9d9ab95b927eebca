// Starts the log threads (monitor_log/log_worker.ts) and sends them numbered requests, each with a wake-up
// from epoll.
//
// Decision: one thread for each file system with logs, one for long execs, whose output may wait in a file, and one for
// everything that writes no file (containers without a log), each started when it is first needed, and ended after a
// minute without work. A disk that stalls then blocks only the containers whose logs lie on it, or long execs. A node
// usually has one such disk; a thread takes 5 MB.
// The thread of a container's log reads the container's memory counters, too: while its disk stalls, the pod's counters
// give the same answer (node/oom.ts).
import { dirname } from "node:path";
import type { Worker } from "node:worker_threads";
import { inTime } from "../base/abort.ts";
import { CriError } from "../base/errors.ts";
import type { CgroupPaths } from "../node/cgroup.ts";
import { MemoryCounts, openMemoryEvents, type MemoryWatch } from "../node/memory_events.ts";
import { eventfd, signalEventfd, type Descriptor, type Released } from "../sys/descriptor.ts";
import { diskOf } from "../sys/disk.ts";
import { LargePipes } from "../sys/large_pipes.ts";
import { MountTable } from "../sys/mount_table.ts";
import { startWorker } from "../sys/worker.ts";
import type { Captured } from "../monitor_log/capture.ts";
import type { LogReport, LogRequest, WorkerBody, WorkerReply } from "../monitor_log/log_worker.ts";

/** device: of the file system with the log. */
export type LogState = {
  troubles: (LogReport["troubles"][number] & { device: string })[];
  droppedBytes: number;
};
type NewLog = Omit<LogRequest, "op" | "resumed">;
export type CaptureRequest = Omit<Extract<WorkerBody, { op: "capture" }>, "op">;
/** isCopied: a shim copies the output, and closes the streams at its end; drainMs: limit for the rest of it. */
export type DrainLimit = { isCopied: boolean; drainMs?: number | undefined };

type Limits = { startMs: number; answerMs: number };

/**
 * startMs: for the start of a thread, which waits for CPU time, not for a disk. answerMs: from then on; longer
 * than a worker waits for a log that it cannot write to end.
 */
const usual: Limits = { startMs: 30_000, answerMs: 10_000 };
/** A pause writes only the rest of terminals' output. */
const pausing: Limits = { startMs: 2_000, answerMs: 2_000 };

/** In place of a device: the thread that captures the output of long execs. */
const execThread = "execs";

export class LogWorkers {
  /** Keyed by device. */
  readonly #threads = new Map<string, LogWorker>();
  /** Container id → the thread that writes its log. */
  readonly #logs = new Map<string, LogWorker>();
  readonly #onFailure: (error: unknown) => void;
  readonly #lingerMs: number;
  readonly #limits: Limits;
  readonly #start: typeof startThread;
  readonly #mounts: MountTable;
  readonly #watchers = new Set<(state: LogState) => void>();
  /** Bytes dropped by threads that have ended. */
  #droppedBefore = 0;
  #uses = 0;

  /**
   * onFailure: called when a worker has ended, so that its logs are not written any more: the process must be replaced.
   * lingerMs: time that a thread is kept after its last use.
   */
  constructor(
    onFailure: (error: unknown) => void,
    { lingerMs = 60_000, limits = usual, start = startThread, mounts = new MountTable() } = {},
  ) {
    this.#onFailure = onFailure;
    this.#lingerMs = lingerMs;
    this.#limits = limits;
    this.#start = start;
    this.#mounts = mounts;
  }

  /** The logs that cannot be written, or lack output. */
  get state(): LogState {
    const threads = [...this.#threads.values()];
    const dropped = threads.map(({ report }) => report.droppedBytes);
    return {
      troubles: threads.flatMap(({ device, report }) =>
        report.troubles.map((trouble) => ({ ...trouble, device })),
      ),
      droppedBytes: dropped.reduce((sum, bytes) => sum + bytes, this.#droppedBefore),
    };
  }

  /** Calls back at each change of the state, until the signal aborts. */
  watch(onChange: (state: LogState) => void, signal: AbortSignal): void {
    this.#watchers.add(onChange);
    signal.addEventListener("abort", () => this.#watchers.delete(onChange), { once: true });
  }

  /** device: of the file system with its logs; "": it writes no file; "execs". waiting: requests without an answer. */
  get threads(): { device: string; logs: number; waiting: number }[] {
    const logsOf = (thread: LogWorker) => this.#logs.values().filter((one) => one === thread);
    return [...this.#threads.values()].map((thread) => {
      const { device, waiting } = thread;
      return { device, logs: [...logsOf(thread)].length, waiting };
    });
  }

  /**
   * Writes a log from descriptors, which the worker owns from here on, even after a failure.
   * @throws CriError DEADLINE_EXCEEDED when its thread does not start or the log's disk does not answer.
   */
  async log(request: NewLog): Promise<void> {
    const { id } = request;
    const thread = this.#logThread(request);
    try {
      await thread.inTime(
        { op: "log", ...request, resumed: false },
        "opening the log on its disk",
        this.#limits,
      );
    } catch (error) {
      this.#forget(id, thread);
      // Closes the log if its disk answers later.
      thread.request({ op: "end", id, isCopied: false }).catch(this.#onFailure);
      throw error;
    }
  }

  /** Continues a log that an earlier monitor wrote, as soon as its disk answers. */
  resume(request: NewLog): void {
    const thread = this.#logThread(request);
    thread.request({ op: "log", ...request, resumed: true }).catch(this.#onFailure);
  }

  /**
   * Ends the log of an exited container; returns the bytes that were lost. isCopied: a shim copies the output,
   * and closes the streams at its end. @throws CriError DEADLINE_EXCEEDED.
   */
  async end(id: string, isCopied = false): Promise<number> {
    const thread = this.#logs.get(id);
    if (thread === undefined) return 0;
    this.#forget(id, thread);
    const { lostBytes = 0 } = await thread.inTime(
      { op: "end", id, isCopied },
      "ending the log on its disk",
      this.#limits,
    );
    return lostBytes;
  }

  /**
   * @throws CriError FAILED_PRECONDITION when the container has ended, and its log with it;
   * DEADLINE_EXCEEDED when the log's disk does not answer.
   */
  async reopen(id: string): Promise<void> {
    await this.#logOf(id).inTime(
      { op: "reopen", id },
      "reopening the log on its disk",
      this.#limits,
    );
  }

  /** Copies a container's further output to the FIFOs at these paths. */
  async attach(request: Omit<Extract<WorkerBody, { op: "attach" }>, "op">): Promise<void> {
    await this.#logOf(request.id).inTime(
      { op: "attach", ...request },
      "attaching to the log",
      this.#limits,
    );
  }

  #logOf(id: string): LogWorker {
    const thread = this.#logs.get(id);
    if (thread !== undefined) return thread;
    throw new CriError("FAILED_PRECONDITION", `container ${id} has ended and has no more output`);
  }

  /** Captures the output of an exec until it is collected. */
  capture(request: CaptureRequest): void {
    this.#use(execThread, `exec ${request.id}`)
      .request({ op: "capture", ...request })
      .catch(this.#onFailure);
  }

  /** Returns the captured output of an exec that has exited. */
  async collect(id: string, limit: DrainLimit): Promise<Captured> {
    const thread = this.#thread(execThread);
    try {
      const reply = await thread.request({ op: "collect", id, ...limit });
      const { stdout, stderr, inFile, cut } = reply;
      return { stdout: stdout!, stderr: stderr!, inFile, cut };
    } finally {
      this.#forget(`exec ${id}`, thread);
    }
  }

  /** Waits for the end of a pidfd's process; owns the descriptor from here on. */
  async readable(pidfd: Descriptor): Promise<void> {
    const use = `process ${++this.#uses}`;
    const thread = this.#use("", use);
    try {
      await thread.request({ op: "await", pidfd: pidfd.release() });
    } finally {
      this.#forget(use, thread);
    }
  }

  /** Reads the memory events of a container's cgroup at each change; undefined where the kernel has none. */
  watchMemory(id: string, paths: CgroupPaths): MemoryWatch | undefined {
    const events = openMemoryEvents(paths);
    if (events === undefined) return undefined;
    const counts = new MemoryCounts();
    const watch = ++this.#uses;
    const use = `cgroup ${watch}`;
    const thread = this.#use(this.#logs.get(id)?.device ?? "", use);
    const request = (body: WorkerBody) => {
      thread.request(body).catch(this.#onFailure);
    };
    request({ op: "watch", watch, events: events.release(), counts: counts.shared });
    const close = () => {
      request({ op: "unwatch", watch });
      this.#forget(use, thread);
    };
    return { counts, close };
  }

  /** Stops all reading and ends every log with a whole line. @throws CriError when one cannot be written. */
  async pause(): Promise<void> {
    const paused = this.#threads
      .values()
      .map((thread) => thread.inTime({ op: "pause" }, "pausing the logs on their disks", pausing));
    await Promise.all(paused);
  }

  /** Ends a pause, also one that failed. */
  continue(): void {
    for (const thread of this.#threads.values()) {
      thread.request({ op: "continue" }).catch(this.#onFailure);
    }
  }

  #logThread({ id, path }: { id: string; path: string }): LogWorker {
    const device = path === "" ? "" : diskOf(dirname(path), this.#mounts.entries);
    const thread = this.#use(device, id);
    this.#logs.set(id, thread);
    return thread;
  }

  #use(device: string, use: string): LogWorker {
    const thread = this.#thread(device);
    clearTimeout(thread.lingering);
    thread.uses.add(use);
    return thread;
  }

  #thread(device: string): LogWorker {
    const onReport = () => this.#watchers.forEach((tell) => tell(this.state));
    const parts = { start: this.#start, onFailure: this.#onFailure, onReport };
    const found = this.#threads.get(device) ?? new LogWorker(device, parts);
    this.#threads.set(device, found);
    return found;
  }

  /**
   * Ends a thread after its last use, unless another one follows soon: it holds memory, and its file system may
   * be unmounted.
   */
  #forget(use: string, thread: LogWorker): void {
    this.#logs.delete(use);
    thread.uses.delete(use);
    if (thread.uses.size > 0) return;
    clearTimeout(thread.lingering);
    thread.lingering = setTimeout(() => {
      this.#threads.delete(thread.device);
      this.#droppedBefore += thread.report.droppedBytes;
      thread.stop();
    }, this.#lingerMs).unref();
  }
}

/** One budget for all threads of the process. */
const { shared: largePipes } = new LargePipes();
const startThread = (wake: Released) =>
  startWorker("monitor_log/log_worker.ts", { wake, largePipes });

type ThreadParts = {
  start: typeof startThread;
  onFailure: (error: unknown) => void;
  onReport: () => void;
};

class LogWorker {
  readonly device: string;
  /** Ids of the containers whose logs the thread writes, and names of everything else that needs the thread. */
  readonly uses = new Set<string>();
  /** The latest. */
  report: LogReport = { troubles: [], droppedBytes: 0 };
  /** Ends the thread when it has had no use for a while. */
  lingering: NodeJS.Timeout | undefined;
  readonly #wake = eventfd();
  readonly #worker: Worker;
  readonly #started = Promise.withResolvers<void>();
  readonly #waiting = new Map<number, PromiseWithResolvers<WorkerReply>>();
  #seq = 0;
  #stopping = false;

  /** device: of the file system with the thread's logs; "": the thread writes no file. */
  constructor(device: string, { start, onFailure, onReport }: ThreadParts) {
    this.device = device;
    this.#worker = start(this.#wake.duplicate().release());
    this.#worker.on("error", onFailure);
    this.#worker.on("exit", (code) => {
      if (!this.#stopping) onFailure(new Error(`log worker ended with ${code}`));
      this.#wake.close();
    });
    this.#worker.on("message", (reply: WorkerReply) => {
      this.#started.resolve();
      if (reply.report !== undefined) {
        this.report = reply.report;
        return onReport();
      }
      const waiting = this.#waiting.get(reply.seq);
      this.#waiting.delete(reply.seq);
      if (reply.error === undefined) waiting?.resolve(reply);
      else waiting?.reject(new CriError(reply.error.code, reply.error.message));
    });
  }

  get waiting(): number {
    return this.#waiting.size;
  }

  /**
   * @throws CriError DEADLINE_EXCEEDED when the thread does not start, or when it waits for a disk that does not
   * answer.
   */
  async inTime(body: WorkerBody, what: string, limits: Limits): Promise<WorkerReply> {
    const answer = this.request(body);
    answer.catch(() => {}); // its failure after the thread's late start is ignored
    await inTime(this.#started.promise, "starting the thread that writes logs", limits.startMs);
    return await inTime(answer, what, limits.answerMs);
  }

  request(body: WorkerBody): Promise<WorkerReply> {
    const seq = ++this.#seq;
    const waiting = Promise.withResolvers<WorkerReply>();
    this.#waiting.set(seq, waiting);
    this.#worker.postMessage({ ...body, seq });
    signalEventfd(this.#wake);
    return waiting.promise;
  }

  /** Ends the thread when none of its logs waits for the disk; no further request may follow. */
  stop(): void {
    this.#stopping = true;
    this.request({ op: "stop" }).catch(() => {}); // it stays while its disk does not answer
  }
}
