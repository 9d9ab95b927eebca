// Bounds JSON text from outside by a scan, before anything is built of it. What a parser builds of a byte may be a
// hundred times as large and slow: an object of one key each three bytes, a number of a million digits.
import { Slices } from "./time_slices.ts";

export type JsonBounds = {
  /** Limits the text in UTF-8. */
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
  // A string of so many units has at least as many bytes: it need not be encoded to be refused.
  if (text.length > bounds.bytesMax) throw tooLong(bounds);
  new JsonScan(bounds).push(Buffer.from(text));
}

/** Like assertWithin(), for long texts, or their bytes in UTF-8: gives way to other calls. */
export async function assertWithinInSlices(
  text: string | Buffer,
  bounds: JsonBounds,
): Promise<void> {
  if (text.length > bounds.bytesMax) throw tooLong(bounds);
  const bytes = typeof text === "string" ? Buffer.from(text) : text;
  const scan = new JsonScan(bounds);
  const slices = new Slices();
  for (let at = 0; at < bytes.length; at += stepBytes) {
    scan.push(bytes.subarray(at, at + stepBytes));
    await slices.pause();
  }
}

/** Scanned in some 100 µs. */
const stepBytes = 16 << 10;

function tooLong({ bytesMax }: JsonBounds): BoundsError {
  return new BoundsError(`is longer than ${bytesMax} bytes`);
}

const quote = 0x22;
const comma = 0x2c;
const backslash = 0x5c;
const [openList, closeList, openObject, closeObject] = [0x5b, 0x5d, 0x7b, 0x7d];
const [zero, nine] = [0x30, 0x39];

/** Scans a text as it arrives, so that one over the bounds is refused at the first byte that is too many. */
export class JsonScan {
  readonly #bounds: JsonBounds;
  #bytes = 0;
  #items = 0;
  #depth = 0;
  #digits = 0;
  #escapes = 0;
  #inString = false;
  /** The next byte belongs to an escape. */
  #isEscaped = false;
  /** The first backslash of the part that is being scanned, unless it is before the place of the scan. */
  #backslash = -1;

  constructor(bounds: JsonBounds) {
    this.#bounds = bounds;
  }

  /** Scans the next part, in UTF-8. @throws BoundsError. */
  push(part: Buffer): void {
    this.#bytes += part.length;
    if (this.#bytes > this.#bounds.bytesMax) throw tooLong(this.#bounds);
    this.#backslash = -1;
    for (let at = 0; at < part.length;)
      at = this.#inString ? this.#string(part, at) : this.#plain(part, at);
  }

  /** Scans up to a string; returns where that begins. */
  #plain(part: Buffer, from: number): number {
    for (let at = from; at < part.length; at++) {
      const c = part[at]!;
      const isDigit = c >= zero && c <= nine;
      this.#digits = isDigit ? this.#digits + 1 : 0;
      if (this.#digits > digitsMax)
        throw new BoundsError(`has a number of over ${digitsMax} digits`);
      if (c === quote) {
        this.#inString = true;
        return at + 1;
      }
      if (c === comma) this.#countItem();
      else if (c === openList || c === openObject) this.#open();
      else if (c === closeList || c === closeObject) this.#depth--;
    }
    return part.length;
  }

  /** Scans to the string's end, by the engine's search, which takes no time for long strings. */
  #string(part: Buffer, from: number): number {
    let at = from;
    if (this.#isEscaped) {
      this.#isEscaped = false;
      at++;
    }
    for (let end = -1; ;) {
      if (end < at) end = find(part, quote, at);
      if (this.#backslash < at) this.#backslash = find(part, backslash, at);
      const escape = this.#backslash;
      if (end <= escape) {
        this.#inString = end === part.length;
        return Math.min(end + 1, part.length);
      }
      if (++this.#escapes > escapesMax)
        throw new BoundsError(`has more than ${escapesMax} escapes`);
      at = escape + 2;
      if (at <= part.length) continue;
      this.#isEscaped = true;
      return part.length;
    }
  }

  #countItem(): void {
    if (++this.#items > this.#bounds.itemsMax)
      throw new BoundsError(`has more than ${this.#bounds.itemsMax} items`);
  }

  #open(): void {
    this.#countItem();
    if (++this.#depth > depthMax) throw new BoundsError(`is nested deeper than ${depthMax} levels`);
  }
}

/** Returns the part's length where the byte is missing. */
function find(part: Buffer, byte: number, from: number): number {
  const at = part.indexOf(byte, from);
  return at === -1 ? part.length : at;
}
