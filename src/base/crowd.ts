// Crowd: lets pods and containers that start at once begin in turn, as many at a time as keep the processors busy.
//
// Decision: without turns, pods that start together become ready together, at the end, because each gets the same
// share of the processors. In turn, half of them are ready in half of the time, and each relist of the kubelet
// finds a few changes instead of a hundred.
import { availableParallelism } from "node:os";
import { Semaphore } from "./semaphore.ts";

/** Two for each processor: a start takes some tenths of a second of one processor, with short waits. */
const startsMax = Math.max(4, 2 * availableParallelism());
/** A start that takes longer waits for something other than a processor: a plugin for its agent, or a hung disk. */
const patienceMs = 1_000;

export class Crowd {
  readonly #places: Semaphore;
  readonly #patienceMs: number;

  /** what: what callers wait for, as in Semaphore. */
  constructor(what: string, limit = startsMax, patience = patienceMs) {
    this.#places = new Semaphore(limit, what);
    this.#patienceMs = patience;
  }

  /**
   * Waits for a place and does the work. Work that takes longer than the patience gives its place to the next one,
   * so that nothing that hangs keeps others waiting.
   * @throws CriError CANCELLED or DEADLINE_EXCEEDED when the signal aborts before a place is free; as the work does.
   */
  async enter<T>(signal: AbortSignal | undefined, work: () => Promise<T>): Promise<T> {
    const place = await this.#places.acquire(signal);
    const leave = () => place[Symbol.dispose]();
    const late = setTimeout(leave, this.#patienceMs);
    try {
      return await work();
    } finally {
      clearTimeout(late);
      leave();
    }
  }
}
