// Returns the engine's unused memory to the kernel; the engine itself would keep it.
//
// Decision: the event loop does not wait for it, except under a flood (class Floods). A collection that the loop asks for goes on in the engine's threads,
// and stops the loop for a few milliseconds only. The one that discards compiled code stops it to its end, so it comes
// after another one, when little is left to do, and its threads then have the loop's priority: otherwise it took 0.2 s
// on a busy node, most of it waiting for a processor.
import process from "node:process";
import { kernelFigure, readKernelFile } from "./file.ts";
import { prioritizeThreads } from "./process.ts";
import { unmapProgram } from "./program_pages.ts";

const lookMs = 1_000;
/** Compiled code is discarded after this long without work. */
export const idleMs = 60_000;
/** The shortest time between two frees of memory while work goes on. */
const restMs = 60_000;
/** Interval at which the program's pages are unmapped; those still used are mapped again at their next use. */
const programMs = 60_000;
/** Growth since the last free that is worth the pause of the event loop. */
const growthKib = 4 << 10;
/** Limit for waiting until no piece of work is under way. */
const waitMs = 10_000;
/** Time for a collection in the engine's threads, before compiled code is discarded. */
const collectMs = 500;
/** The engine's threads that collect garbage. The kernel has 15 bytes of a name: Bun keeps the last ones. */
const collectors = ["HeapHelper", "ollector Thread"];

type Engine = { gc(force: boolean): void; shrink(): void };

/** Under Deno there is none. */
const engine = (globalThis as unknown as { Bun?: Engine }).Bun;

/** Collects garbage and waits for it: for a worker whose loop never returns to the event loop. */
export function collectGarbageNow(): void {
  engine?.gc(true);
}

/** Growth of the heap since the last full collection that is worth another one at once. */
const floodBytes = 8 << 20;
/** The shortest time between two of them, which take some 10 ms each. */
const floodRestMs = 50;

/** Bytes of the engine's heap; 0 where no descriptor is free to read it. */
function heapBytes(): number {
  try {
    return process.memoryUsage().heapUsed;
  } catch {
    return 0;
  }
}

/**
 * Collects all garbage as soon as the heap has grown. The engine's usual collections are of young objects: chunks that
 * have waited in a queue through one of them stay until the heap has grown to a multiple, and a peer that sends without
 * end made it grow by 600 MiB. Each collection of the engine finds the same kind of dead object, which tells of it: a
 * process that waits pays nothing.
 */
class Floods implements Disposable {
  readonly #registry = new FinalizationRegistry(() => this.#collected());
  #isOver = false;
  #leastBytes = Infinity;
  #lastMs = 0;

  constructor() {
    this.#registry.register({}, undefined);
  }

  #collected(): void {
    if (this.#isOver) return;
    const bytes = heapBytes();
    if (bytes > 0) this.#leastBytes = Math.min(this.#leastBytes, bytes);
    const isRested = performance.now() - this.#lastMs >= floodRestMs;
    if (isRested && bytes >= this.#leastBytes + floodBytes) {
      prioritizeThreads(collectors);
      collectGarbageNow();
      this.#leastBytes = heapBytes() || bytes;
      this.#lastMs = performance.now();
    }
    this.#registry.register({}, undefined);
  }

  [Symbol.dispose](): void {
    this.#isOver = true;
  }
}

/** count: pieces of work begun so far; goesOn: some has not ended. */
export type Work = { count: number; goesOn: boolean };

/** This process's memory that no file backs, in KiB; 0 where no descriptor is free to read it. */
function anonymousKib(): number {
  try {
    return kernelFigure(readKernelFile("/proc/self/status"), "RssAnon") ?? 0;
  } catch {
    return 0;
  }
}

/**
 * Frees memory after each busy period. After a second without work it collects garbage and unmaps the program's
 * pages, if memory has grown since the last free: rare probes do not cost a collection each. After a minute without
 * work it frees all garbage and all compiled code, a third of the heap; the next calls then take some ms longer, until
 * their code is compiled again.
 *
 * A node whose containers are probed is never idle. There, all garbage and compiled code are freed whenever memory has
 * grown, at most once a minute, and if possible between two calls, since the end of it blocks the event loop
 * (docs/architecture.md).
 */
export function returnMemory(work: () => Work, sizeKib = anonymousKib): Disposable {
  let seen = work().count;
  let idle = 0;
  let sinceMs = 0;
  let dueMs = 0;
  let leastKib = Infinity;
  let later: NodeJS.Timeout | undefined;
  const shrink = () => {
    engine?.gc(false);
    clearTimeout(later);
    later = setTimeout(() => {
      prioritizeThreads(collectors);
      engine?.shrink();
    }, collectMs);
    [sinceMs, dueMs, leastKib] = [0, 0, Infinity];
  };
  const floods = new Floods();
  const programTimer = setInterval(unmapProgram, programMs);
  const timer = setInterval(() => {
    const { count, goesOn } = work();
    idle = count === seen && !goesOn ? idle + lookMs : 0;
    seen = count;
    sinceMs += lookMs;
    if (idle === idleMs) return shrink();
    if (idle > lookMs) return;
    const kib = sizeKib();
    leastKib = Math.min(leastKib, kib);
    const hasGrown = kib >= leastKib + growthKib;
    const isDue = sinceMs >= restMs && hasGrown;
    dueMs = isDue ? dueMs + lookMs : 0;
    if (isDue && (!goesOn || dueMs > waitMs)) return shrink();
    if (idle < lookMs || !hasGrown) return;
    engine?.gc(false);
    unmapProgram();
    leastKib = Infinity;
  }, lookMs);
  return {
    [Symbol.dispose]: () => {
      clearInterval(timer);
      clearTimeout(later);
      clearInterval(programTimer);
      floods[Symbol.dispose]();
    },
  };
}
