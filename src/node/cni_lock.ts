// A readers-writer lock between CNI commands: ADDs and DELs share it, GC holds it exclusively, because GC
// would free the addresses of an ADD that is not yet recorded.
import { setTimeout as sleep } from "node:timers/promises";
import { untilAborted } from "../base/abort.ts";

const pollMs = 20;

export class CniLock {
  #sharers = 0;
  #exclusive: Promise<void> | undefined;

  /** Waits while the lock is held exclusively. @throws CriError when the signal aborts. */
  async shared(signal: AbortSignal): Promise<Disposable> {
    while (this.#exclusive !== undefined) {
      await untilAborted(this.#exclusive, "waiting for the pod network's GC", signal);
    }
    this.#sharers++;
    return {
      [Symbol.dispose]: () => {
        this.#sharers--;
      },
    };
  }

  /** Polls, so that ADDs and DELs never queue behind a waiting GC; undefined: not free within timeoutMs. */
  async exclusive(timeoutMs: number): Promise<Disposable | undefined> {
    for (const end = performance.now() + timeoutMs; performance.now() < end; await sleep(pollMs)) {
      if (this.#sharers === 0 && this.#exclusive === undefined) return this.#lock();
    }
    return undefined;
  }

  #lock(): Disposable {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#exclusive = promise;
    return {
      [Symbol.dispose]: () => {
        this.#exclusive = undefined;
        resolve();
      },
    };
  }
}
