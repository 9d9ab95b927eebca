// Who waits for a container's end, and what is known of stops under way.
import { abortError } from "../base/abort.ts";

export class ExitWaiters {
  readonly #waiting = new Map<string, Set<() => void>>();
  /** Containers that were sent their stop signal: a repeated Stop does not send it again. */
  readonly #signalled = new Set<string>();

  wasSignalled(id: string): boolean {
    return this.#signalled.has(id);
  }

  /** The container has got its stop signal. */
  signalled(id: string): void {
    this.#signalled.add(id);
  }

  /** The container's exit is committed. */
  exited(id: string): void {
    this.#signalled.delete(id);
    for (const wake of this.#waiting.get(id) ?? []) wake();
    this.#waiting.delete(id);
  }

  /**
   * Waits until the exit is committed: true; or for timeoutMs: false.
   * @throws CriError CANCELLED or DEADLINE_EXCEEDED when the caller's signal aborts.
   */
  wait(id: string, timeoutMs: number, signal: AbortSignal): Promise<boolean> {
    const end = this.#wait(id, timeoutMs, signal);
    end.catch(() => {}); // its caller may be in another step when it is aborted, and asks later
    return end;
  }

  #wait(id: string, timeoutMs: number, signal: AbortSignal): Promise<boolean> {
    return new Promise((resolve, reject) => {
      const waiters = this.#waiting.get(id) ?? new Set();
      this.#waiting.set(id, waiters);
      const finish = () => {
        clearTimeout(timer);
        signal.removeEventListener("abort", onAbort);
        waiters.delete(wake);
      };
      const wake = () => {
        finish();
        resolve(true);
      };
      const onAbort = () => {
        finish();
        reject(abortError(`waiting for the end of container ${id}`, signal));
      };
      const timer = setTimeout(() => {
        finish();
        resolve(false);
      }, timeoutMs);
      waiters.add(wake);
      signal.addEventListener("abort", onAbort, { once: true });
      if (signal.aborted) onAbort();
    });
  }
}
