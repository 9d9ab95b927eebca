// Time slices: let long loops yield to other calls.
import { setImmediate as nextTurn } from "node:timers/promises";

const sliceMs = 5;

/** Divides work into slices, between which the event loop serves others. */
export class Slices {
  #endMs = performance.now() + sliceMs;

  /** Yields if the slice is over; call it after each short piece of work. */
  async pause(): Promise<void> {
    if (performance.now() < this.#endMs) return;
    await nextTurn();
    this.#endMs = performance.now() + sliceMs;
  }
}
