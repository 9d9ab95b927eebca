// Tests the deadlines of requests to log threads: a thread's start is not counted as its disk's time.
import { EventEmitter } from "node:events";
import type { Worker } from "node:worker_threads";
import { expect, test } from "bun:test";
import { LogWorkers } from "../../../src/monitor/log_workers.ts";
import type { WorkerBody } from "../../../src/monitor_log/log_worker.ts";
import { Descriptor } from "../../../src/sys/descriptor.ts";
import { failure } from "../../expect.ts";

const limits = { startMs: 2_000, answerMs: 200 };
const request = { id: "one", path: "/tmp/one.log", terminal: false } as const;

/** Starts after startMs, if ever, and answers requests where its disk does. */
class TestThread extends EventEmitter {
  readonly ops: string[] = [];
  readonly #answers: boolean;
  readonly #started: Promise<void>;

  constructor({ startMs, answers }: { startMs: number; answers: boolean }) {
    super();
    this.#answers = answers;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#started = promise;
    if (startMs < Number.POSITIVE_INFINITY) setTimeout(resolve, startMs);
    void promise.then(() => this.emit("message", { seq: 0 }));
  }

  postMessage({ seq, op }: WorkerBody & { seq: number }): void {
    this.ops.push(op);
    if (this.#answers) void this.#started.then(() => this.emit("message", { seq }));
  }
}

/** Starts a log with such a thread; the thread's own descriptor is closed. */
function logWith(behaviour: { startMs: number; answers: boolean }, startMs = limits.startMs) {
  const thread = new TestThread(behaviour);
  const workers = new LogWorkers(
    (error) => {
      throw error;
    },
    {
      limits: { ...limits, startMs },
      start: (wake) => {
        Descriptor.adopt(wake).close();
        return thread as unknown as Worker;
      },
    },
  );
  return { thread, result: workers.log(request) };
}

test("a thread that starts later than a disk may answer writes its log", async () => {
  await logWith({ startMs: 3 * limits.answerMs, answers: true }).result;
});

test("a disk that does not answer is blamed, from the thread's start on", async () => {
  const { thread, result } = logWith({ startMs: 10, answers: false });
  const { code, message } = await failure(result);
  expect(code).toBe("DEADLINE_EXCEEDED");
  expect(message).toMatch(/^opening the log on its disk: deadline exceeded/);
  expect(thread.ops).toEqual(["log", "end"]);
});

test("a thread that does not start is blamed itself, and ends the log should it start", async () => {
  const behaviour = { startMs: Number.POSITIVE_INFINITY, answers: true };
  const { thread, result } = logWith(behaviour, 100);
  const { code, message } = await failure(result);
  expect(code).toBe("DEADLINE_EXCEEDED");
  expect(message).toMatch(/^starting the thread that writes logs: deadline exceeded/);
  expect(thread.ops).toEqual(["log", "end"]);
});
