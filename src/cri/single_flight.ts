// Single-flight: calls with the same key share one run of the work (a kubelet repeats a call whose answer
// it missed, and several clients stop the same pod).
import { type Droppable, untilAborted } from "../base/abort.ts";

type Flight<Result extends Droppable> = { result: Promise<Result>; signal: AbortSignal };

export class SingleFlight<Result extends Droppable> {
  readonly #flights = new Map<string, Flight<Result>>();

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
        return await untilAborted(flight.result, "waiting for the same call", signal);
      } catch (error) {
        if (signal.aborted || !flight.signal.aborted) throw error;
      }
    }
    const result = work().finally(() => this.#flights.delete(key));
    this.#flights.set(key, { result, signal });
    return result;
  }
}
