// Paces frames that carry nothing, such as unasked pongs and data of streams that are closed: they need neither an answer
// nor room, so nothing else slows down a peer that sends them without end.
import { setTimeout as sleep } from "node:timers/promises";

/** Frames at once; clients send some a minute, and some thousand when the other end has closed a busy stream. */
const burst = 2_000;
const perMs = 5;
/** A pause, in ms: long enough to cost nothing. */
const pauseMs = 10;

export class FramePace {
  #left = burst;
  #atMs: number;
  readonly #now: () => number;

  /** now: milliseconds of a monotonic clock. */
  constructor(now = () => performance.now()) {
    this.#now = now;
    this.#atMs = now();
  }

  /** Counts a frame, or one that costs as much as several. True when the reader must await rest() before it goes on. */
  isSpent(frames = 1): boolean {
    this.#left -= frames;
    if (this.#left > 0) return false;
    const now = this.#now();
    this.#left = Math.min(burst, this.#left + (now - this.#atMs) * perMs);
    this.#atMs = now;
    return this.#left <= 0;
  }

  rest(): Promise<void> {
    return sleep(pauseMs);
  }
}
