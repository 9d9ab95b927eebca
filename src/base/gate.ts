// Gate: admits many callers at once, or one that closes it and is alone.
import { throwIfAborted, untilAborted } from "./abort.ts";
import { activity } from "./activity.ts";
import { lockChanged, newTurn, type LockInUse, type Turn } from "./lock_states.ts";

export class Gate implements LockInUse {
  /** What its callers wait for. */
  readonly what: string;
  /** The callers inside, and the one that has closed the gate. */
  readonly holders = new Set<Turn>();
  readonly waiting = new Set<Turn>();
  #closed: PromiseWithResolvers<void> | undefined;
  /** Resolves the wait of the caller that closes the gate. */
  #onEmpty: (() => void) | undefined;

  /** what: what callers wait for, for the dump and the error of one whose signal aborts. */
  constructor(what: string) {
    this.what = what;
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
    if (signal !== undefined) throwIfAborted(`waiting for ${this.what}`, signal);
    const closed = this.#shut();
    if (this.holders.size === 1) return closed;
    using undo = new DisposableStack();
    undo.use(closed);
    undo.defer(() => (this.#onEmpty = undefined));
    await this.#wait(new Promise<void>((resolve) => (this.#onEmpty = resolve)), signal);
    this.#onEmpty = undefined;
    undo.move();
    return closed;
  }

  /** Closes the gate if nobody is inside; undefined otherwise: unlike close(), it does not hold newcomers up. */
  tryClose(): Disposable | undefined {
    return this.holders.size > 0 || this.isClosed ? undefined : this.#shut();
  }

  async #wait(promise: Promise<void>, signal: AbortSignal | undefined): Promise<void> {
    const turn = newTurn();
    this.waiting.add(turn);
    try {
      await activity("wait", { for: this.what }, () =>
        signal === undefined ? promise : untilAborted(promise, `waiting for ${this.what}`, signal),
      );
    } finally {
      this.waiting.delete(turn);
    }
  }

  #admit(): Disposable {
    return this.#hold(() => {
      if (this.holders.size === (this.isClosed ? 1 : 0)) this.#onEmpty?.();
    });
  }

  #hold(onLeave: () => void): Disposable {
    const turn = newTurn();
    this.holders.add(turn);
    lockChanged(this);
    return {
      [Symbol.dispose]: () => {
        if (!this.holders.delete(turn)) return;
        lockChanged(this);
        onLeave();
      },
    };
  }

  #shut(): Disposable {
    const closed = Promise.withResolvers<void>();
    this.#closed = closed;
    return this.#hold(() => {
      this.#closed = undefined;
      closed.resolve();
    });
  }
}
