// Gate: admits many callers at once, or one that closes it and is alone.
import { throwIfAborted, untilAborted } from "./abort.ts";

export class Gate {
  readonly #what: string;
  #inside = 0;
  #closed: PromiseWithResolvers<void> | undefined;
  /** Resolves the wait of the caller that closes the gate. */
  #onEmpty: (() => void) | undefined;

  /** what: what callers wait for, for the error of one whose signal aborts. */
  constructor(what = "a gate") {
    this.#what = `waiting for ${what}`;
  }

  get isClosed(): boolean {
    return this.#closed !== undefined;
  }

  /**
   * Waits while the gate is closed, then is inside until disposed.
   * @throws CriError CANCELLED or DEADLINE_EXCEEDED when the signal aborts before the gate opens.
   */
  async enter(signal?: AbortSignal): Promise<Disposable> {
    while (this.#closed !== undefined) await this.#wait(this.#closed.promise, signal);
    return this.#admit();
  }

  /** Runs the work inside; at once, in the same turn of the event loop, while the gate is open. */
  async pass<T>(work: () => Promise<T>): Promise<T> {
    using _ = this.isClosed ? await this.enter() : this.#admit();
    return await work();
  }

  /**
   * Admits nobody from now on, returns when the last caller has left, and opens when disposed.
   * @throws CriError CANCELLED or DEADLINE_EXCEEDED when the signal aborts before that; the gate is open again.
   */
  async close(signal?: AbortSignal): Promise<Disposable> {
    while (this.#closed !== undefined) await this.#wait(this.#closed.promise, signal);
    if (signal !== undefined) throwIfAborted(this.#what, signal);
    const closed = this.#shut();
    if (this.#inside === 0) return closed;
    using undo = new DisposableStack();
    undo.use(closed);
    undo.defer(() => (this.#onEmpty = undefined));
    await this.#wait(new Promise<void>((resolve) => (this.#onEmpty = resolve)), signal);
    this.#onEmpty = undefined;
    undo.move();
    return closed;
  }

  /** Closes the gate if nobody is inside; undefined otherwise. Keeps nobody waiting in vain. */
  tryClose(): Disposable | undefined {
    return this.#inside > 0 || this.isClosed ? undefined : this.#shut();
  }

  #wait(promise: Promise<void>, signal: AbortSignal | undefined): Promise<void> {
    return signal === undefined ? promise : untilAborted(promise, this.#what, signal);
  }

  #admit(): Disposable {
    this.#inside++;
    return {
      [Symbol.dispose]: () => {
        this.#inside--;
        if (this.#inside === 0) this.#onEmpty?.();
      },
    };
  }

  #shut(): Disposable {
    const closed = Promise.withResolvers<void>();
    this.#closed = closed;
    return {
      [Symbol.dispose]: () => {
        this.#closed = undefined;
        closed.resolve();
      },
    };
  }
}
