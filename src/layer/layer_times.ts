// Measures the two phases of a layer from a registry, which overlap: the fetch of its blob, and its unpacking.
import { reportActivity } from "../base/activity.ts";

export class LayerTimes {
  readonly #size: number;
  readonly #beganMs = performance.now();
  #firstMs: number | undefined;
  #lastMs = 0;

  /** size: of the blob, in bytes. */
  constructor(size: number) {
    this.#size = size;
  }

  /** bytes: all that were received so far. */
  received(bytes: number): void {
    if (bytes === 0) return;
    this.#lastMs = performance.now();
    this.#firstMs ??= this.#lastMs;
  }

  /** Call it when the layer is done. */
  report(): void {
    const endedMs = performance.now();
    const fetched = { beganMs: this.#beganMs, endedMs: this.#lastMs || endedMs };
    reportActivity("pull", { phase: "fetch" }, { ...fetched, bytes: this.#size });
    const unpacked = { beganMs: this.#firstMs ?? this.#beganMs, endedMs };
    reportActivity("pull", { phase: "unpack" }, unpacked);
  }
}
