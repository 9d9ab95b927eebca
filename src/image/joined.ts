// Several callers of the same work share one run of it; it is cancelled when the last one leaves.
import { type Droppable, throwIfAborted, untilAborted } from "../base/abort.ts";
import { CriError } from "../base/errors.ts";
import type { ImageProgress, OnProgress } from "../layer/layer_progress.ts";

type Work<T> = (signal: AbortSignal, onProgress: OnProgress) => Promise<T>;

type Caller = { signal: AbortSignal; onProgress?: OnProgress };

type Run<T> = {
  result: Promise<T>;
  controller: AbortController;
  callers: Set<Caller>;
  /** What there is to tell to who joins later. */
  last?: ImageProgress;
};

export class JoinedPulls<T extends Droppable> {
  readonly #runs = new Map<string, Run<T>>();

  /** @throws CriError CANCELLED or DEADLINE_EXCEEDED when this caller's signal aborts. */
  async join(key: string, caller: Caller, work: Work<T>): Promise<T> {
    throwIfAborted("pull", caller.signal);
    const run = this.#runs.get(key) ?? this.#start(key, work);
    run.callers.add(caller);
    if (run.last !== undefined) caller.onProgress?.(run.last);
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
    const onProgress = (progress: ImageProgress) => {
      if (run !== undefined) run.last = progress;
      for (const caller of callers) caller.onProgress?.(progress);
    };
    let run: Run<T> | undefined;
    const result = work(controller.signal, onProgress);
    run = { result, controller, callers };
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
