// Taking turns: at most so many at once, first come first served.
import { abortError, throwIfAborted } from "./abort.ts";

export class Turns {
  #free: number;
  readonly #waiting = new Set<() => void>();

  constructor(limit: number) {
    this.#free = limit;
  }

  get isIdle(): boolean {
    return this.#free > 0 && this.#waiting.size === 0;
  }

  /** @throws CriError CANCELLED or DEADLINE_EXCEEDED when the signal aborts before the turn. */
  async run<T>(signal: AbortSignal, work: () => Promise<T>): Promise<T> {
    throwIfAborted("waiting for a turn", signal);
    if (this.#free > 0) this.#free--;
    else await this.#wait(signal);
    try {
      return await work();
    } finally {
      const [next] = this.#waiting;
      if (next === undefined) this.#free++;
      else next();
    }
  }

  #wait(signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const go = () => {
        this.#waiting.delete(go);
        signal.removeEventListener("abort", stop);
        resolve();
      };
      const stop = () => {
        this.#waiting.delete(go);
        reject(abortError("waiting for a turn", signal));
      };
      this.#waiting.add(go);
      signal.addEventListener("abort", stop, { once: true });
    });
  }
}

/** One turn at a time for each key. */
export class KeyedTurns {
  readonly #byKey = new Map<string, Turns>();

  async run<T>(key: string, signal: AbortSignal, work: () => Promise<T>): Promise<T> {
    const turns = this.#byKey.get(key) ?? new Turns(1);
    this.#byKey.set(key, turns);
    try {
      return await turns.run(signal, work);
    } finally {
      if (turns.isIdle && this.#byKey.get(key) === turns) this.#byKey.delete(key);
    }
  }
}
