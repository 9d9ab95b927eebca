// Semaphore: admits up to `limit` holders at once, first come, first served. With a limit of 1 it is a mutex.
import { abortError, throwIfAborted } from "./abort.ts";

export class Semaphore {
  #free: number;
  readonly #what: string;
  readonly #waiting = new Set<() => void>();

  /** what: what callers wait for, for the error of one whose signal aborts. */
  constructor(limit: number, what = "a turn") {
    this.#free = limit;
    this.#what = `waiting for ${what}`;
  }

  get isFree(): boolean {
    return this.#free > 0;
  }

  /**
   * Holds one of the places until disposed.
   * @throws CriError CANCELLED or DEADLINE_EXCEEDED when the signal aborts before a place is free.
   */
  async acquire(signal?: AbortSignal): Promise<Disposable> {
    if (signal !== undefined) throwIfAborted(this.#what, signal);
    if (this.#free > 0) this.#free--;
    else await this.#wait(signal);
    return { [Symbol.dispose]: () => this.#release() };
  }

  /** @throws as acquire() and the work do. */
  async run<T>(signal: AbortSignal | undefined, work: () => Promise<T>): Promise<T> {
    using _ = await this.acquire(signal);
    return await work();
  }

  /** The place passes to the longest waiter directly, so that nobody overtakes it. */
  #release(): void {
    const [next] = this.#waiting;
    if (next === undefined) this.#free++;
    else next();
  }

  #wait(signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve, reject) => {
      const admit = () => {
        this.#waiting.delete(admit);
        signal?.removeEventListener("abort", giveUp);
        resolve();
      };
      const giveUp = () => {
        this.#waiting.delete(admit);
        reject(abortError(this.#what, signal!));
      };
      this.#waiting.add(admit);
      signal?.addEventListener("abort", giveUp, { once: true });
    });
  }
}
