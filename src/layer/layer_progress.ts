// Tracks the progress of each layer while an image is pulled, loaded or saved.

/** present: the node had the layer before. */
export type LayerState = "waiting" | "moving" | "done" | "present";

export type LayerProgress = {
  /** Of the blob; the diff ID when the blob's digest is unknown. */
  digest: string;
  state: LayerState;
  /** Bytes of the blob. */
  doneBytes: number;
  totalBytes: number;
};

/** layers: lowest first. */
export type ImageProgress = { image: string; layers: readonly LayerProgress[] };

export type OnProgress = (progress: ImageProgress) => void;

const stepBytes = 1 << 20;
const stepMs = 500;

/**
 * Sums up the bytes of a job and reports the sum when it has grown by a MiB, or after half a second: on a slow
 * connection a MiB takes long enough to look like a stall.
 */
export class ByteProgress {
  readonly #onProgress: (bytes: number) => void;
  readonly #nowMs: () => number;
  #bytes = 0;
  #reported = 0;
  #reportedMs: number;

  constructor(onProgress: (bytes: number) => void, nowMs = () => performance.now()) {
    this.#onProgress = onProgress;
    this.#nowMs = nowMs;
    this.#reportedMs = nowMs();
  }

  add(bytes: number): void {
    this.#bytes += bytes;
    const isStep = this.#bytes - this.#reported >= stepBytes;
    if (isStep || this.#nowMs() - this.#reportedMs >= stepMs) this.report();
  }

  report(): void {
    this.#reported = this.#bytes;
    this.#reportedMs = this.#nowMs();
    this.#onProgress(this.#bytes);
  }
}

/** Holds the progress of one image's layers and reports each change. */
export class ProgressTracker {
  readonly #image: string;
  readonly #layers: LayerProgress[];
  readonly #onProgress: OnProgress;

  constructor(
    image: string,
    layers: readonly { digest: string; totalBytes: number }[],
    onProgress: OnProgress,
  ) {
    this.#image = image;
    this.#layers = layers.map((layer) => ({ ...layer, state: "waiting", doneBytes: 0 }));
    this.#onProgress = onProgress;
    this.#report();
  }

  set(index: number, state: LayerState, doneBytes: number): void {
    this.#layers[index] = { ...this.#layers[index]!, state, doneBytes };
    this.#report();
  }

  #report(): void {
    this.#onProgress({ image: this.#image, layers: [...this.#layers] });
  }
}
