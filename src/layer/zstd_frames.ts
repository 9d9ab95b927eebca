// Where the frames of a zstd stream end (RFC 8878, section 3.1): the decompressor tells neither that it
// stopped inside one, nor that what follows the last one is none.

const skippable = 0x184d2a50;

/** A frame's first bytes: of a Zstandard frame, or of one to be skipped. */
export function isZstd(magic: number): boolean {
  return magic === 0xfd2fb528 || isSkippable(magic);
}

function isSkippable(magic: number): boolean {
  return (magic & 0xfffffff0) >>> 0 === skippable;
}

type Part = "magic" | "skippable" | "descriptor" | "block";
const lengths = { magic: 4, skippable: 4, descriptor: 1, block: 3 } as const;

/** Follows the lengths that a stream's frames tell; what lies in them is the decompressor's to judge. */
export class ZstdFrames {
  #part: Part = "magic";
  /** Of the part, what has come. */
  #head: number[] = [];
  /** Until the next part. */
  #skip = 0;
  #hasChecksum = false;

  /** Between two frames, or behind the last one. */
  get isWhole(): boolean {
    return this.#part === "magic" && this.#head.length === 0 && this.#skip === 0;
  }

  /** @returns how many of the bytes come before the first zero where a frame would begin. */
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
        this.#skip = ((value >> 1) & 3) === 1 ? 1 : value >> 3; // 1: one byte, to be repeated
        if ((value & 1) === 0) return; // not the last one
        this.#part = "magic";
        this.#skip += this.#hasChecksum ? 4 : 0;
    }
  }
}

/** What follows a frame header's descriptor: window, dictionary id, content size. */
function headerRest(descriptor: number): number {
  const isSingleSegment = (descriptor & 0x20) !== 0;
  const contentSize = [isSingleSegment ? 1 : 0, 2, 4, 8][descriptor >> 6]!;
  const dictionaryId = [0, 1, 2, 4][descriptor & 3]!;
  return (isSingleSegment ? 0 : 1) + dictionaryId + contentSize;
}
