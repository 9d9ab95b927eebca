// Tests the deadlines of requests to log threads: a thread's start is not counted as its disk's time.
import { EventEmitter } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import type { Worker } from "node:worker_threads";
import { expect, test } from "bun:test";
import { LogWorkers } from "../../../src/monitor/log_workers.ts";
import type { WorkerBody } from "../../../src/monitor_log/log_worker.ts";
import { Descriptor, type Released } from "../../../src/sys/descriptor.ts";
import { failure } from "../../expect.ts";

const limits = { startMs: 2_000, answerMs: 200 };
const request = { id: "one", path: "/tmp/one.log", terminal: false, hasReturns: false } as const;

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

type Options = { limits?: typeof limits; lingerMs?: number };

/** Workers with such threads, whose own descriptors are closed. */
function workersOf(threads: TestThread[], options: Options): LogWorkers {
  const rest = [...threads];
  const onFailure = (error: unknown) => {
    throw error;
  };
  const start = (wake: Released) => {
    Descriptor.adopt(wake).close();
    return rest.shift() as unknown as Worker;
  };
  return new LogWorkers(onFailure, { ...options, start });
}

/** Starts a log with such a thread. */
function logWith(behaviour: { startMs: number; answers: boolean }, startMs = limits.startMs) {
  const thread = new TestThread(behaviour);
  const workers = workersOf([thread], { limits: { ...limits, startMs } });
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

test("the thread of long execs ends when none has run for a while, and another one starts for the next", async () => {
  const threads = [1, 2].map(() => new TestThread({ startMs: 0, answers: true }));
  const workers = workersOf(threads, { lingerMs: 30 });
  const capture = async (id: string) => {
    const [stdout, stderr] = [Descriptor.open("/dev/null", 0), Descriptor.open("/dev/null", 0)];
    workers.capture({ id, stdout: stdout.release(), stderr: stderr.release(), maxBytes: 1 });
    await workers.collect(id, { isCopied: false });
  };
  await capture("one");
  await capture("two"); // within the while
  await sleep(100);
  await capture("three");
  expect(threads.map(({ ops }) => ops)).toEqual([
    ["capture", "collect", "capture", "collect", "stop"],
    ["capture", "collect"],
  ]);
});
