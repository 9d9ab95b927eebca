// Reads sparse files in a tar stream: GNU's old form (type S) and the pax forms 0.0, 0.1 and 1.0. The stream
// contains only the data; a map gives each part's position in the file.
// https://www.gnu.org/software/tar/manual/html_node/Sparse-Formats.html
import { CriError } from "../base/errors.ts";
import { quoted } from "../base/text.ts";
import { bad } from "./tar_fields.ts";

type Part = { offset: number; length: number };

/** Receives a part of the content and its position in the file. */
type Sink = (chunk: Uint8Array, position: number) => void;

const block = 512;
/** Limit of one file. */
export const partsMax = 100_000;
/** The limit of ext4; a larger file could not be created. */
const fileBytesMax = 2 ** 44;

/** Distributes the data of one file, which is pushed in the stream's order. */
export class SparseBody {
  readonly #name: string;
  readonly #count: (parts: number) => void;
  readonly size: number;
  readonly #stored: number;
  /** undefined until the map at the head of the data is complete (pax 1.0). */
  #parts: Part[] | undefined;
  #head: Buffer | undefined;
  #headBytes = 0;
  #part = 0;
  #inPart = 0;

  /**
   * size: of the file; stored: bytes in the stream; count: throws when the layer has too many parts.
   * @throws CriError INVALID_ARGUMENT.
   */
  constructor(
    name: string,
    o: { size: number; stored: number; parts: number[] | undefined; count: (n: number) => void },
  ) {
    this.#name = name;
    this.#count = o.count;
    this.size = o.size;
    this.#stored = o.stored;
    if (o.size > fileBytesMax) throw this.#bad(`is a file of ${o.size} bytes`);
    if (o.parts === undefined) this.#head = Buffer.alloc(0);
    else this.#setParts(o.parts);
  }

  push(chunk: Uint8Array, sink: Sink): void {
    let rest = chunk;
    if (this.#head !== undefined) {
      this.#head = Buffer.concat([this.#head, chunk]);
      const end = this.#readMap();
      if (end === undefined) return;
      rest = this.#head.subarray(end);
      this.#head = undefined;
    }
    while (rest.length > 0) {
      const part = this.#parts![this.#part]!;
      const count = Math.min(rest.length, part.length - this.#inPart);
      if (count > 0) sink(rest.subarray(0, count), part.offset + this.#inPart);
      rest = rest.subarray(count);
      this.#inPart += count;
      if (this.#inPart < part.length) continue;
      this.#part++;
      this.#inPart = 0;
    }
  }

  /** @throws CriError INVALID_ARGUMENT when the map is incomplete. */
  end(): void {
    if (this.#parts === undefined) throw this.#bad("has a truncated sparse map");
  }

  /** Parses lines of one number each: count of parts, offset and length of each; padded to blocks. */
  #readMap(): number | undefined {
    const head = this.#head!;
    if (head.length > partsMax * 32) throw this.#bad("has a sparse map that is too long");
    const numbers: number[] = [];
    let at = 0;
    for (let left = 1; left > 0; left--) {
      const line = head.indexOf(0x0a, at);
      if (line < 0 || line - at > 20) {
        if (head.length - at > 20) throw this.#bad("has no valid sparse map");
        return undefined;
      }
      const value = this.#number(head.toString("latin1", at, line));
      at = line + 1;
      if (numbers.push(value) === 1) left += value * 2;
      if (value > partsMax && numbers.length === 1) throw this.#bad("has too many parts");
    }
    const end = Math.ceil(at / block) * block;
    if (head.length < end) return undefined;
    this.#headBytes = end;
    this.#setParts(numbers.slice(1));
    return end;
  }

  #number(digits: string): number {
    const value = Number(digits);
    if (/^\d+$/.test(digits) && Number.isSafeInteger(value)) return value;
    throw this.#bad(`has ${quoted(digits)} in its sparse map`);
  }

  /** Checks that the parts are in order, inside the file, and cover all of the data. */
  #setParts(numbers: number[]): void {
    if (numbers.length % 2 !== 0) throw this.#bad("has half a part in its sparse map");
    if (numbers.length > partsMax * 2) throw this.#bad("has too many parts");
    this.#count(numbers.length / 2);
    const parts: Part[] = [];
    let [end, sum] = [0, 0];
    for (let i = 0; i < numbers.length; i += 2) {
      const [offset, length] = [numbers[i]!, numbers[i + 1]!];
      if (offset < end || offset + length > this.size) {
        throw this.#bad("has a sparse map whose parts overlap or lie outside of the file");
      }
      end = offset + length;
      sum += length;
      if (length > 0) parts.push({ offset, length });
    }
    if (sum !== this.#stored - this.#headBytes) {
      throw this.#bad(`has ${this.#stored - this.#headBytes} bytes; its sparse map lists ${sum}`);
    }
    this.#parts = parts;
  }

  #bad(what: string): CriError {
    return new CriError("INVALID_ARGUMENT", `entry ${quoted(this.#name)} ${what}`);
  }
}

/** Reads the sparse fields of a file's pax records; undefined when it is not sparse. */
export function paxSparse(
  get: (key: string) => string | undefined,
): { name: string | undefined; size: string; map: string | undefined } | undefined {
  const major = get("GNU.sparse.major");
  const size = get("GNU.sparse.realsize") ?? get("GNU.sparse.size");
  if (size === undefined) {
    if (major === undefined) return undefined;
    throw bad(`a sparse file of form ${major} without its size`);
  }
  const map = major === "1" ? undefined : (get("GNU.sparse.map") ?? "");
  return { name: get("GNU.sparse.name"), size, map };
}
