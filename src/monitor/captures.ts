// Captures the output of execs.
//
// Decision: most execs are probes, which soon end and write a line or nothing. Their output waits in the pipes
// until they have exited, and is then read here. Execs that write more or run longer, and those whose children
// keep the output open, are left to a log thread. On most nodes it never starts, which saves 4 MB, and a probe
// costs no message between threads.
import { setTimeout as sleep } from "node:timers/promises";
import { Capture, type Captured } from "../monitor_log/capture.ts";
import { Descriptor, hasHungUp, unreadBytes } from "../sys/descriptor.ts";
import type { CaptureRequest, DrainLimit, LogWorkers } from "./log_workers.ts";

/** Interval of looks at the pipes: a program that has filled one waits this long for its reader. */
const lookMs = 20;
/** A quarter of a pipe. */
const bytesMax = 16 << 10;
// One exec in some hundred ends a moment before all holders of its pipes have closed them: longest wait, and step.
const [closingMs, closingStepMs] = [100, 5];

type Streams = { stdout: Descriptor; stderr: Descriptor };
type Short = Streams & Pick<CaptureRequest, "maxBytes" | "file"> & { startedMs: number };

export class Captures {
  readonly #workers: Pick<LogWorkers, "capture" | "collect">;
  readonly #shortMs: number;
  readonly #short = new Map<string, Short>();
  #timer: NodeJS.Timeout | undefined;

  /** shortMs: an exec that runs longer is left to the thread. */
  constructor(workers: Pick<LogWorkers, "capture" | "collect">, { shortMs = 1_000 } = {}) {
    this.#workers = workers;
    this.#shortMs = shortMs;
  }

  /** Captures an exec's output, up to maxBytes, until it is collected; owns the descriptors from here on. */
  capture({ id, stdout, stderr, maxBytes, file }: CaptureRequest): void {
    this.#short.set(id, {
      stdout: Descriptor.adopt(stdout),
      stderr: Descriptor.adopt(stderr),
      maxBytes,
      file,
      startedMs: performance.now(),
    });
    this.#timer ??= setInterval(() => this.#look(), lookMs);
  }

  /** Returns the captured output of an exec that has exited. */
  async collect(id: string, limit: DrainLimit): Promise<Captured> {
    const end = performance.now() + Math.min(closingMs, limit.drainMs ?? closingMs);
    for (;;) {
      const short = this.#short.get(id);
      if (short === undefined) break; // the thread has it
      if (hasHungUp(short.stdout) && hasHungUp(short.stderr)) return readAll(this.#take(id, short));
      if (performance.now() >= end) this.#leave(id, short);
      else await sleep(closingStepMs);
    }
    return this.#workers.collect(id, limit);
  }

  #look(): void {
    const now = performance.now();
    for (const [id, short] of this.#short) {
      const isLong = now - short.startedMs > this.#shortMs;
      const unread = Math.max(unreadBytes(short.stdout), unreadBytes(short.stderr));
      if (isLong || unread > bytesMax) this.#leave(id, short);
    }
  }

  /** Leaves an exec to the thread. */
  #leave(id: string, short: Short): void {
    this.#workers.capture({ id, ...this.#take(id, short) });
  }

  #take(id: string, { stdout, stderr, maxBytes, file }: Short): Omit<CaptureRequest, "id"> {
    this.#short.delete(id);
    if (this.#short.size === 0) {
      clearInterval(this.#timer);
      this.#timer = undefined;
    }
    return { stdout: stdout.release(), stderr: stderr.release(), maxBytes, file };
  }
}

/** Reads what pipes without a writer still hold. */
function readAll({ stdout, stderr, maxBytes }: Omit<CaptureRequest, "id">): Captured {
  const capture = new Capture({ stdout, stderr }, maxBytes);
  using both = new DisposableStack(); // closes stderr also if stdout cannot be read
  for (const { descriptor } of capture.inputs) both.use(descriptor);
  for (const output of capture.inputs) while (output.turn() === "more");
  return capture.collected();
}
