// Long loops that must not hold other calls up.
import { setImmediate as nextTurn } from "node:timers/promises";

const sliceMs = 5;

/** Work in slices of time, between which everybody else gets a turn. */
export class Slices {
  #endMs = performance.now() + sliceMs;

  /** To be called after each piece of work, which should be short. */
  async pause(): Promise<void> {
    if (performance.now() < this.#endMs) return;
    await nextTurn();
    this.#endMs = performance.now() + sliceMs;
  }
}
