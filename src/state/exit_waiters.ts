// Lets calls wait for the exit of a container, and send its stop signal only once.
import { abortError } from "../base/abort.ts";

export class ExitWaiters {
  readonly #waiting = new Map<string, Set<() => void>>();
  /** Delivery of the stop signal, by container; kept until the container's exit. */
  readonly #signals = new Map<string, Promise<void>>();

  /**
   * Sends a running container its stop signal, once until its exit is committed: later callers share the
   * first caller's promise. After a failure the next caller sends it again.
   */
  signalOnce(id: string, send: () => Promise<void>): Promise<void> {
    const known = this.#signals.get(id);
    if (known !== undefined) return known;
    const sent = send();
    this.#signals.set(id, sent);
    sent.catch(() => {
      if (this.#signals.get(id) === sent) this.#signals.delete(id);
    });
    return sent;
  }

  /** Wakes all waiters: the container's exit is committed. */
  exited(id: string): void {
    this.#signals.delete(id);
    for (const wake of this.#waiting.get(id) ?? []) wake();
  }

  /** Watches for the container's exit from now on, until the result is disposed of. */
  watch(id: string): Disposable & { readonly hasExited: boolean } {
    let hasExited = false;
    const wake = () => (hasExited = true);
    this.#add(id, wake);
    return {
      get hasExited() {
        return hasExited;
      },
      [Symbol.dispose]: () => this.#remove(id, wake),
    };
  }

  #add(id: string, wake: () => void): void {
    const waiters = this.#waiting.get(id) ?? new Set();
    this.#waiting.set(id, waiters.add(wake));
  }

  #remove(id: string, wake: () => void): void {
    const waiters = this.#waiting.get(id);
    waiters?.delete(wake);
    if (waiters?.size === 0) this.#waiting.delete(id);
  }

  /**
   * Resolves to true once the exit is committed, to false after timeoutMs.
   * @throws CriError CANCELLED or DEADLINE_EXCEEDED when the caller's signal aborts, if one is given.
   */
  wait(id: string, timeoutMs: number, signal?: AbortSignal): Promise<boolean> {
    const { promise, resolve, reject } = Promise.withResolvers<boolean>();
    promise.catch(() => {}); // the caller may await something else first
    const finish = (settle: () => void) => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", onAbort);
      this.#remove(id, wake);
      settle();
    };
    const wake = () => finish(() => resolve(true));
    const onAbort = () =>
      finish(() => reject(abortError(`waiting for the end of container ${id}`, signal!)));
    const timer = setTimeout(() => finish(() => resolve(false)), timeoutMs);
    this.#add(id, wake);
    signal?.addEventListener("abort", onAbort, { once: true });
    if (signal?.aborted) onAbort();
    return promise;
  }
}
