// Keyed lock: one holder at a time for each key, in the order of the calls.
import { Semaphore } from "./semaphore.ts";

export class KeyedLock {
  readonly #what: string;
  /** Only the keys that are held. */
  readonly #locks = new Map<string, Semaphore>();

  /** what: the kind of object that a key names, for the dump and errors: "layer". */
  constructor(what: string) {
    this.#what = what;
  }

  isHeld(key: string): boolean {
    return this.#locks.has(key);
  }

  /**
   * Holds the key until disposed.
   * @throws CriError CANCELLED or DEADLINE_EXCEEDED when the signal aborts before the key is free.
   */
  async acquire(key: string, signal?: AbortSignal): Promise<Disposable> {
    const lock = this.#locks.get(key) ?? new Semaphore(1, `${this.#what} ${key}`);
    const acquired = lock.acquire(signal);
    if (!lock.isFree) this.#locks.set(key, lock);
    const held = await acquired;
    return {
      [Symbol.dispose]: () => {
        held[Symbol.dispose]();
        if (lock.isFree) this.#locks.delete(key);
      },
    };
  }

  /** @throws as acquire() and the work do. */
  async run<T>(key: string, signal: AbortSignal | undefined, work: () => Promise<T>): Promise<T> {
    using _ = await this.acquire(key, signal);
    return await work();
  }
}
