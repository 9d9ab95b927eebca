// The main thread's side of the log workers: requests by number, and a nudge out of epoll.
//
// Decision: a thread for each file system that holds logs, and one for all that writes nothing (execs,
// containers without a log, counters of memory), each started when it is first needed. A disk that
// stalls then holds up the containers whose logs are on it, and no others. A node has one such disk; a
// thread takes 5 MB.
import { dirname } from "node:path";
import { Worker } from "node:worker_threads";
import { inTime } from "../base/abort.ts";
import { build } from "../base/build.ts";
import { CriError } from "../base/errors.ts";
import type { CgroupPaths } from "../node/cgroup.ts";
import { MemoryCounts, openMemoryEvents, type MemoryWatch } from "../node/memory_events.ts";
import { eventfd, signalEventfd, type Descriptor } from "../sys/descriptor.ts";
import { diskOf } from "../sys/disk.ts";
import type { WorkerReply, WorkerRequest } from "../monitor_log/log_worker.ts";

type Body = WorkerRequest extends infer R ? (R extends R ? Omit<R, "seq"> : never) : never;

/** Longer than a worker takes for the end of a log that it cannot write. */
const answerMs = 10_000;
/** Pausing writes at most what terminals have left. */
const pauseMs = 2_000;

export class LogWorkers {
  readonly #threads = new Map<string, LogWorker>();
  /** By container: the thread that has its log. */
  readonly #logs = new Map<string, LogWorker>();
  readonly #onFailure: (error: unknown) => void;
  readonly #lingerMs: number;
  #watches = 0;

  /**
   * onFailure: a worker ended, and with it its logs; the process must be replaced. lingerMs: how long a
   * thread is kept for the next log after its last one.
   */
  constructor(onFailure: (error: unknown) => void, { lingerMs = 60_000 } = {}) {
    this.#onFailure = onFailure;
    this.#lingerMs = lingerMs;
  }

  /**
   * Writes a log from descriptors, which are the worker's from here on, whatever comes.
   * @throws CriError DEADLINE_EXCEEDED when the log's disk does not answer.
   */
  async log(request: Omit<Extract<Body, { op: "log" }>, "op" | "resumed">): Promise<void> {
    const { id } = request;
    const thread = this.#logThread(request);
    try {
      await inTime(
        thread.request({ op: "log", ...request, resumed: false }),
        "opening the log on its disk",
        answerMs,
      );
    } catch (error) {
      this.#forget(id, thread);
      thread.request({ op: "end", id }).catch(this.#onFailure); // when it is opened after all
      throw error;
    }
  }

  /** Goes on with a log that an earlier monitor wrote, as soon as its disk lets it. */
  resume(request: Omit<Extract<Body, { op: "log" }>, "op" | "resumed">): void {
    const thread = this.#logThread(request);
    thread.request({ op: "log", ...request, resumed: true }).catch(this.#onFailure);
  }

  /** The container has exited: bytes that its log lacks. @throws CriError DEADLINE_EXCEEDED. */
  async end(id: string): Promise<number> {
    const thread = this.#logs.get(id);
    if (thread === undefined) return 0;
    this.#forget(id, thread);
    const reply = await inTime(
      thread.request({ op: "end", id }),
      "ending the log on its disk",
      answerMs,
    );
    return reply.lostBytes ?? 0;
  }

  /**
   * @throws CriError FAILED_PRECONDITION when the container has ended, and its log with it;
   * DEADLINE_EXCEEDED when the log's disk does not answer.
   */
  async reopen(id: string): Promise<void> {
    const thread = this.#logOf(id);
    await inTime(
      thread.request({ op: "reopen", id }),
      "opening the log anew on its disk",
      answerMs,
    );
  }

  /** A container's output from now on goes into the FIFOs of these paths too. */
  async attach(request: Omit<Extract<Body, { op: "attach" }>, "op">): Promise<void> {
    const thread = this.#logOf(request.id);
    await inTime(thread.request({ op: "attach", ...request }), "attaching to the log", answerMs);
  }

  #logOf(id: string): LogWorker {
    const thread = this.#logs.get(id);
    if (thread !== undefined) return thread;
    const message = `container ${id} has no output any more: it has ended`;
    throw new CriError("FAILED_PRECONDITION", message);
  }

  /** Output of an exec, kept until it is collected. */
  async capture(request: Omit<Extract<Body, { op: "capture" }>, "op">): Promise<void> {
    await this.#thread("").request({ op: "capture", ...request });
  }

  async collect(id: string): Promise<{ stdout: Uint8Array; stderr: Uint8Array }> {
    const { stdout, stderr } = await this.#thread("").request({ op: "collect", id });
    return { stdout: stdout!, stderr: stderr! };
  }

  /** Waits until a pidfd's process has ended; owns the descriptor from here on. */
  async readable(pidfd: Descriptor): Promise<void> {
    await this.#thread("").request({ op: "await", pidfd: pidfd.release() });
  }

  /** What a cgroup counts of its want of memory, read at each change; undefined where it does not. */
  watchMemory(paths: CgroupPaths): MemoryWatch | undefined {
    const events = openMemoryEvents(paths);
    if (events === undefined) return undefined;
    const counts = new MemoryCounts();
    const watch = ++this.#watches;
    const ask = (body: Body) => {
      this.#thread("").request(body).catch(this.#onFailure);
    };
    ask({ op: "watch", watch, events: events.release(), counts: counts.shared });
    return { counts, close: () => ask({ op: "unwatch", watch }) };
  }

  /** Nothing is read any more, and every log ends with a whole line. @throws CriError when one cannot. */
  async pause(): Promise<void> {
    const threads = [...this.#threads.values()];
    const paused = threads.map((thread) => thread.request({ op: "pause" }));
    await inTime(Promise.all(paused), "pausing the logs on their disks", pauseMs);
  }

  /** Takes a pause back, or the attempt at one. */
  continue(): void {
    for (const thread of this.#threads.values()) {
      thread.request({ op: "continue" }).catch(this.#onFailure);
    }
  }

  #logThread({ id, path }: { id: string; path: string }): LogWorker {
    const thread = this.#thread(path === "" ? "" : diskOf(dirname(path)));
    thread.logs.add(id);
    this.#logs.set(id, thread);
    return thread;
  }

  #thread(device: string): LogWorker {
    const found = this.#threads.get(device) ?? new LogWorker(this.#onFailure);
    this.#threads.set(device, found);
    return found;
  }

  /** A file system may have gone with its last log: its thread goes too, unless another log comes soon. */
  #forget(id: string, thread: LogWorker): void {
    this.#logs.delete(id);
    thread.logs.delete(id);
    if (thread === this.#threads.get("") || thread.logs.size > 0) return;
    setTimeout(() => {
      const device = this.#threads.entries().find(([, one]) => one === thread)?.[0];
      if (device === undefined || thread.logs.size > 0) return;
      this.#threads.delete(device);
      thread.stop();
    }, this.#lingerMs).unref();
  }
}

class LogWorker {
  /** Containers whose logs it has. */
  readonly logs = new Set<string>();
  readonly #wake = eventfd();
  readonly #worker: Worker;
  readonly #waiting = new Map<number, PromiseWithResolvers<WorkerReply>>();
  #seq = 0;
  #stopping = false;

  constructor(onFailure: (error: unknown) => void) {
    // Inside the executable a worker goes by its path from the build's root (dist/build.ts).
    const entry =
      build === undefined
        ? new URL("../monitor_log/log_worker.ts", import.meta.url)
        : "./src/monitor_log/log_worker.ts";
    this.#worker = new Worker(entry, {
      workerData: { wake: this.#wake.duplicate().release() },
    });
    this.#worker.on("error", onFailure);
    this.#worker.on("exit", (code) => {
      if (!this.#stopping) onFailure(new Error(`log worker ended with ${code}`));
      this.#wake.close();
    });
    this.#worker.on("message", (reply: WorkerReply) => {
      const waiting = this.#waiting.get(reply.seq);
      this.#waiting.delete(reply.seq);
      if (reply.error === undefined) waiting?.resolve(reply);
      else waiting?.reject(new CriError("INTERNAL", reply.error));
    });
  }

  request(body: Body): Promise<WorkerReply> {
    const seq = ++this.#seq;
    const waiting = Promise.withResolvers<WorkerReply>();
    this.#waiting.set(seq, waiting);
    this.#worker.postMessage({ ...body, seq });
    signalEventfd(this.#wake);
    return waiting.promise;
  }

  /** Nothing is asked of it any more: it ends when it has no log left that waits for its disk. */
  stop(): void {
    this.#stopping = true;
    this.request({ op: "stop" }).catch(() => {}); // its disk does not answer: it stays
  }
}
