// Bounds JSON text from outside by a scan, before anything is built of it. What a parser builds of a byte may be a
// hundred times as large and slow: an object of one key each three bytes, a number of a million digits.
import { Slices } from "./time_slices.ts";

export type JsonBounds = {
  /** Of the text in UTF-8; of a string its UTF-16 units, which are no more. */
  bytesMax: number;
  /** Values of lists and objects, at all levels together. */
  itemsMax: number;
};

/**
 * For a text that is parsed at once. JSON.parse() and the check by a schema take some 10 ms each for the worst text
 * of so many items.
 */
export const usualBounds: JsonBounds = { bytesMax: 1 << 20, itemsMax: 16_384 };

/**
 * For a manifest, an index, a config, or another document of an image. Registries have to take 4 MiB (OCI distribution
 * specification), containerd takes manifests up to 8 MiB, CRI-O 4 MiB of each. Real ones have less than 1 MiB, and a
 * thousand items.
 */
export const documentBounds: JsonBounds = { ...usualBounds, bytesMax: 4 << 20 };

const depthMax = 64;
/** An escape takes as long as ten plain characters. A label that holds JSON has some ten thousand. */
const escapesMax = 128 << 10;
/** JSON.parse() takes 10 ns for each digit, a hundred times as long as for a character of a string. */
const digitsMax = 64;

/** A text that exceeds a bound. The message continues a sentence that begins with the text's name. */
export class BoundsError extends Error {
  override readonly name = "BoundsError";
}

/** @throws BoundsError. A text that is no JSON is left to the parser, which stops at the first fault. */
export function assertWithin(text: string, bounds: JsonBounds): void {
  const scan = new Scan(text, bounds);
  while (!scan.step()) continue;
}

/** Like assertWithin(), for long texts, or their bytes in UTF-8: gives way to other calls. */
export async function assertWithinInSlices(
  text: string | Buffer,
  bounds: JsonBounds,
): Promise<void> {
  const scan = new Scan(text, bounds);
  const slices = new Slices();
  while (!scan.step()) await slices.pause();
}

/** Characters of one step of a scan, some 100 µs; a string is one character. */
const stepLength = 16 << 10;

const quote = 0x22;
const backslash = 0x5c;
const comma = 0x2c;
const [openList, closeList, openObject, closeObject] = [0x5b, 0x5d, 0x7b, 0x7d];
const [zero, nine] = [0x30, 0x39];

class Scan {
  readonly #text: Buffer;
  readonly #itemsMax: number;
  #at = 0;
  #items = 0;
  #depth = 0;
  #digits = 0;
  #escapes = 0;
  /** The first quote and backslash from #at on, unless they are before it; the text's length if there is none. */
  #quote = -1;
  #backslash = -1;

  constructor(text: string | Buffer, { bytesMax, itemsMax }: JsonBounds) {
    // A string of so many units has at least as many bytes: it need not be encoded to be refused.
    if (text.length > bytesMax) throw new BoundsError(`is longer than ${bytesMax} bytes`);
    this.#text = typeof text === "string" ? Buffer.from(text) : text;
    this.#itemsMax = itemsMax;
  }

  /** Scans a part; returns true at the end. */
  step(): boolean {
    const text = this.#text;
    for (let left = stepLength; left > 0 && this.#at < text.length; left--) {
      const c = text[this.#at++]!;
      const isDigit = c >= zero && c <= nine;
      this.#digits = isDigit ? this.#digits + 1 : 0;
      if (this.#digits > digitsMax)
        throw new BoundsError(`has a number of over ${digitsMax} digits`);
      if (c === quote) this.#skipString();
      else if (c === comma) this.#countItem();
      else if (c === openList || c === openObject) this.#open();
      else if (c === closeList || c === closeObject) this.#depth--;
    }
    return this.#at >= text.length;
  }

  #countItem(): void {
    if (++this.#items > this.#itemsMax)
      throw new BoundsError(`has more than ${this.#itemsMax} items`);
  }

  #open(): void {
    this.#countItem();
    if (++this.#depth > depthMax) throw new BoundsError(`is nested deeper than ${depthMax} levels`);
  }

  /** By the engine's search, which takes no time for long strings. */
  #skipString(): void {
    for (;;) {
      if (this.#quote < this.#at) this.#quote = this.#find(quote);
      if (this.#backslash < this.#at) this.#backslash = this.#find(backslash);
      if (this.#quote <= this.#backslash) {
        this.#at = this.#quote + 1;
        return;
      }
      this.#at = this.#backslash + 2;
      if (++this.#escapes > escapesMax)
        throw new BoundsError(`has more than ${escapesMax} escapes`);
    }
  }

  /** Returns the text's length where the character is missing. */
  #find(character: number): number {
    const at = this.#text.indexOf(character, this.#at);
    return at === -1 ? this.#text.length : at;
  }
}
