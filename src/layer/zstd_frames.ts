// Finds the ends of the frames in a zstd stream (RFC 8878, section 3.1): the decompressor reports neither a
// truncated frame nor data after the last one.

const skippable = 0x184d2a50;

/** True for the magic number of a Zstandard frame or of a skippable one. */
export function isZstd(magic: number): boolean {
  return magic === 0xfd2fb528 || isSkippable(magic);
}

function isSkippable(magic: number): boolean {
  return (magic & 0xfffffff0) >>> 0 === skippable;
}

type Part = "magic" | "skippable" | "descriptor" | "block";
const lengths = { magic: 4, skippable: 4, descriptor: 1, block: 3 } as const;

/** Follows the lengths in a stream's frames; the decompressor validates their content. */
export class ZstdFrames {
  #part: Part = "magic";
  #head: number[] = [];
  #skip = 0;
  #hasChecksum = false;

  /** True between two frames and after the last one. */
  get isWhole(): boolean {
    return this.#part === "magic" && this.#head.length === 0 && this.#skip === 0;
  }

  /** @returns the number of bytes before the first zero byte in place of a frame. */
  push(bytes: Uint8Array): number {
    let at = 0;
    while (at < bytes.length) {
      if (this.#skip > 0) {
        const skipped = Math.min(this.#skip, bytes.length - at);
        this.#skip -= skipped;
        at += skipped;
        continue;
      }
      if (this.isWhole && bytes[at] === 0) return at;
      this.#head.push(bytes[at++]!);
      if (this.#head.length < lengths[this.#part]) continue;
      const value = Buffer.from(this.#head).readUIntLE(0, this.#head.length);
      this.#head = [];
      this.#next(value);
    }
    return at;
  }

  #next(value: number): void {
    switch (this.#part) {
      case "magic":
        this.#part = isSkippable(value) ? "skippable" : "descriptor";
        return;
      case "skippable":
        this.#part = "magic";
        this.#skip = value;
        return;
      case "descriptor":
        this.#part = "block";
        this.#hasChecksum = (value & 4) !== 0;
        this.#skip = headerRest(value);
        return;
      case "block":
        this.#skip = ((value >> 1) & 3) === 1 ? 1 : value >> 3; // 1: an RLE block of one byte
        if ((value & 1) === 0) return; // not the last one
        this.#part = "magic";
        this.#skip += this.#hasChecksum ? 4 : 0;
    }
  }
}

/** Length of the frame header after its descriptor: window, dictionary id, content size. */
function headerRest(descriptor: number): number {
  const isSingleSegment = (descriptor & 0x20) !== 0;
  const contentSize = [isSingleSegment ? 1 : 0, 2, 4, 8][descriptor >> 6]!;
  const dictionaryId = [0, 1, 2, 4][descriptor & 3]!;
  return (isSingleSegment ? 0 : 1) + dictionaryId + contentSize;
}
