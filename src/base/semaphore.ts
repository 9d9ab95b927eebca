// Semaphore: admits up to `limit` holders at once, first come, first served. With a limit of 1 it is a mutex.
import { abortError, throwIfAborted } from "./abort.ts";
import { activity } from "./activity.ts";
import { lockChanged, newTurn, type LockInUse, type Turn } from "./lock_states.ts";

export class Semaphore implements LockInUse {
  readonly #limit: number;
  /** What its callers wait for. */
  readonly what: string;
  readonly holders = new Set<Turn>();
  /** Each with the function that admits it. */
  readonly #waiting = new Map<Turn, () => void>();

  /** what: what callers wait for, for the dump and the error of one whose signal aborts. */
  constructor(limit: number, what: string) {
    this.#limit = limit;
    this.what = what;
  }

  get isFree(): boolean {
    return this.holders.size < this.#limit;
  }

  get waiting(): ReadonlySet<Turn> {
    return new Set(this.#waiting.keys());
  }

  /**
   * Holds one of the places until disposed.
   * @throws CriError CANCELLED or DEADLINE_EXCEEDED when the signal aborts before a place is free.
   */
  async acquire(signal?: AbortSignal): Promise<Disposable> {
    if (signal !== undefined) throwIfAborted(`waiting for ${this.what}`, signal);
    const turn = newTurn();
    if (this.isFree) this.#admit(turn);
    else await activity("wait", { for: this.what }, () => this.#wait(turn, signal));
    return { [Symbol.dispose]: () => this.#release(turn) };
  }

  /** @throws as acquire() and the work do. */
  async run<T>(signal: AbortSignal | undefined, work: () => Promise<T>): Promise<T> {
    using _ = await this.acquire(signal);
    return await work();
  }

  #admit(turn: Turn): void {
    turn.sinceMs = performance.now();
    this.holders.add(turn);
    lockChanged(this);
  }

  /** The place passes to the longest waiter directly, so that nobody overtakes it. */
  #release(turn: Turn): void {
    this.holders.delete(turn);
    const [next] = this.#waiting.values();
    if (next !== undefined && this.isFree) next();
    lockChanged(this);
  }

  #wait(turn: Turn, signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve, reject) => {
      const admit = () => {
        this.#waiting.delete(turn);
        signal?.removeEventListener("abort", giveUp);
        this.#admit(turn);
        resolve();
      };
      const giveUp = () => {
        this.#waiting.delete(turn);
        reject(abortError(`waiting for ${this.what}`, signal!));
      };
      this.#waiting.set(turn, admit);
      signal?.addEventListener("abort", giveUp, { once: true });
    });
  }
}
