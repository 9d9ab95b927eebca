// How far each layer of an image is that is pulled, loaded or saved.

/** present: it was on this node before. */
export type LayerState = "waiting" | "moving" | "done" | "present";

export type LayerProgress = {
  /** Of the layer's blob; its diff id where nobody names it. */
  digest: string;
  state: LayerState;
  /** Bytes of the blob. */
  doneBytes: number;
  totalBytes: number;
};

/** layers: lowest first. */
export type ImageProgress = { image: string; layers: readonly LayerProgress[] };

export type OnProgress = (progress: ImageProgress) => void;

/** Keeps the figures of one image's layers, and tells of each change. */
export class LayerBoard {
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
    this.#tell();
  }

  set(index: number, state: LayerState, doneBytes: number): void {
    const layer = this.#layers[index]!;
    this.#layers[index] = { ...layer, state, doneBytes };
    this.#tell();
  }

  #tell(): void {
    this.#onProgress({ image: this.#image, layers: [...this.#layers] });
  }
}
