// Limits how far compressed data may expand, so that a decompression bomb cannot fill the node.
import { CriError } from "../base/errors.ts";

/** Up to this size any ratio is allowed: a small layer full of zeros is no bomb. */
const freeBytes = 256 << 20;

export class ExpansionLimit {
  readonly #bytesMax: number;
  readonly #ratioMax: number;
  #packedBytes = 0;
  #plainBytes = 0;

  constructor({ bytesMax = Infinity, ratioMax }: { bytesMax?: number; ratioMax: number }) {
    this.#bytesMax = bytesMax;
    this.#ratioMax = ratioMax;
  }

  addPacked(bytes: number): void {
    this.#packedBytes += bytes;
  }

  /** @throws CriError RESOURCE_EXHAUSTED over a limit. */
  addPlain(bytes: number): void {
    this.#plainBytes += bytes;
    const [packed, plain] = [this.#packedBytes, this.#plainBytes];
    if (plain > this.#bytesMax) {
      const message = `it unpacks to more than ${this.#bytesMax} bytes (layer-max-mib)`;
      throw new CriError("RESOURCE_EXHAUSTED", message);
    }
    if (plain <= Math.max(freeBytes, packed * this.#ratioMax)) return;
    const message = `${packed} bytes of it unpack to ${plain}, over ${this.#ratioMax} times as much (layer-max-ratio)`;
    throw new CriError("RESOURCE_EXHAUSTED", message);
  }
}
