// Single-flight: calls with the same key share one run of the work.
import { type Droppable, throwIfAborted, untilAborted } from "./abort.ts";
import { activity } from "./activity.ts";

/**
 * The first caller's signal ends the run. For RPCs: a kubelet repeats a call whose answer it missed, and
 * several clients stop the same pod.
 */
export class SingleFlight<Result extends Droppable> {
  readonly #flights = new Map<string, { result: Promise<Result>; signal: AbortSignal }>();

  /**
   * Runs `work`, or joins the run under way for this key and shares its result or error. A run that failed
   * because its own caller gave up does not count: `work` then runs for a caller that still waits.
   * @throws CriError CANCELLED or DEADLINE_EXCEEDED when this caller gives up; the run goes on.
   */
  async join(key: string, signal: AbortSignal, work: () => Promise<Result>): Promise<Result> {
    for (;;) {
      const flight = this.#flights.get(key);
      if (flight === undefined) break;
      try {
        return await activity("wait", { for: "the same call" }, () =>
          untilAborted(flight.result, "waiting for the same call", signal),
        );
      } catch (error) {
        if (signal.aborted || !flight.signal.aborted) throw error;
      }
    }
    const result = work().finally(() => this.#flights.delete(key));
    this.#flights.set(key, { result, signal });
    return result;
  }
}

type Caller<Progress> = { signal: AbortSignal; onProgress?: (progress: Progress) => void };

type SharedRun<Result, Progress> = {
  result: Promise<Result>;
  controller: AbortController;
  callers: Set<Caller<Progress>>;
  /** The newest progress, for a caller that joins later. */
  last?: Progress;
};

type SharedWork<Result, Progress> = (
  signal: AbortSignal,
  onProgress: (progress: Progress) => void,
) => Promise<Result>;

/** Counts the callers of a run; the last one that leaves cancels it. All of them see its progress. */
export class CountedFlight<Result extends Droppable, Progress extends object> {
  readonly #what: string;
  readonly #runs = new Map<string, SharedRun<Result, Progress>>();

  /** what: what the work does, for the error of a caller whose signal aborts. */
  constructor(what: string) {
    this.#what = what;
  }

  /** @throws CriError CANCELLED or DEADLINE_EXCEEDED when this caller's signal aborts. */
  async join(
    key: string,
    caller: Caller<Progress>,
    work: SharedWork<Result, Progress>,
  ): Promise<Result> {
    throwIfAborted(this.#what, caller.signal);
    const run = this.#runs.get(key) ?? this.#start(key, work);
    run.callers.add(caller);
    if (run.last !== undefined) caller.onProgress?.(run.last);
    try {
      return await untilAborted(run.result, this.#what, caller.signal);
    } finally {
      run.callers.delete(caller);
      if (run.callers.size === 0) await this.#cancel(key, run, caller.signal.reason);
    }
  }

  /** Cancels all runs and waits until they have been rolled back. */
  async end(reason: Error): Promise<void> {
    await Promise.all([...this.#runs].map(([key, run]) => this.#cancel(key, run, reason)));
  }

  #start(key: string, work: SharedWork<Result, Progress>): SharedRun<Result, Progress> {
    const controller = new AbortController();
    const callers = new Set<Caller<Progress>>();
    const onProgress = (progress: Progress) => {
      if (run !== undefined) run.last = progress;
      for (const caller of callers) caller.onProgress?.(progress);
    };
    let run: SharedRun<Result, Progress> | undefined;
    const result = work(controller.signal, onProgress);
    run = { result, controller, callers };
    this.#runs.set(key, run);
    return run;
  }

  /** Aborts the work, unless it is over, and waits until it has been rolled back. */
  async #cancel(key: string, run: SharedRun<Result, Progress>, reason: unknown): Promise<void> {
    if (this.#runs.get(key) === run) this.#runs.delete(key); // later callers start another run
    run.controller.abort(reason);
    await run.result.catch(() => {});
  }
}
