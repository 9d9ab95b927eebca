// Several callers of the same work share one run of it; it is cancelled when the last one leaves.
import { throwIfAborted, untilAborted } from "../base/abort.ts";
import { CriError } from "../base/errors.ts";

export type PullProgress = { doneBytes: number; totalBytes: number };

type Work<T> = (signal: AbortSignal, onProgress: (progress: PullProgress) => void) => Promise<T>;

type Caller = { signal: AbortSignal; onProgress?: (progress: PullProgress) => void };

type Run<T> = { result: Promise<T>; controller: AbortController; callers: Set<Caller> };

export class JoinedPulls<T> {
  readonly #runs = new Map<string, Run<T>>();

  /** @throws CriError CANCELLED or DEADLINE_EXCEEDED when this caller's signal aborts. */
  async join(key: string, caller: Caller, work: Work<T>): Promise<T> {
    throwIfAborted("pull", caller.signal);
    const run = this.#runs.get(key) ?? this.#start(key, work);
    run.callers.add(caller);
    try {
      return await untilAborted(run.result, "pull", caller.signal);
    } finally {
      run.callers.delete(caller);
      if (run.callers.size === 0) await this.#cancel(key, run, caller.signal.reason);
    }
  }

  /** Cancels everything and waits until it has been undone. */
  async end(): Promise<void> {
    const reason = new CriError("CANCELLED", "the daemon stops");
    await Promise.all([...this.#runs].map(([key, run]) => this.#cancel(key, run, reason)));
  }

  #start(key: string, work: Work<T>): Run<T> {
    const controller = new AbortController();
    const callers = new Set<Caller>();
    const onProgress = (progress: PullProgress) => {
      for (const caller of callers) caller.onProgress?.(progress);
    };
    const result = work(controller.signal, onProgress);
    const run: Run<T> = { result, controller, callers };
    this.#runs.set(key, run);
    return run;
  }

  /** Nobody waits any more: ends the work, if it is not over, and waits for its undoing. */
  async #cancel(key: string, run: Run<T>, reason: unknown): Promise<void> {
    if (this.#runs.get(key) === run) this.#runs.delete(key); // who comes now starts anew
    run.controller.abort(reason);
    await run.result.catch(() => {});
  }
}
