// How a layer's tar stream is made again from its unpacked tree: all of the stream that is no content of
// a file, and for the rest in which file it lies.
// Decision: no blob is kept, and yet `save` gives a layer its diff id back, byte for byte; packed anew in
// any other order or form, the layer would have another one, and the image another config and id. It
// costs about a hundredth of the layer, and about that of the time to unpack it.
import * as fs from "node:fs";
import * as zlib from "node:zlib";
import { CriError } from "../base/errors.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { writeAll } from "../sys/file.ts";
import type { TarHandler, TarHeader } from "./tar.ts";
import { pathOf } from "./tar_fields.ts";

/** A part of the stream: bytes, or how many to take of a file of the tree, from where on. */
export type RecipePart =
  | { kind: "bytes"; bytes: Uint8Array }
  | { kind: "file"; path: Buffer; offset: number; length: number };

// On disk: the length of the whole stream (u64; 0: it cannot be made again), then blocks, each a length
// (u32) and so many bytes of zstd. In a block: BYTES, u32 length, the bytes; or FILE, u32 length of the
// path, the path, offset and length as u64. All little-endian.
const BYTES = 0;
const FILE = 1;
const blockBytes = 256 << 10;
const lengthBytes = 8;
const headBytes = 5;
const fileTailBytes = 16;
/** A longer path (in characters) is beyond what the kernel takes. */
const pathMax = 16_384;
/** Of a recipe on disk; a layer whose stream is mostly something else than files gets none. */
const recipeBytesMax = 64 << 20;

// Node's types of our minimum version do not know them yet.
const { zstdCompressSync, zstdDecompressSync } = zlib as unknown as {
  zstdCompressSync: (bytes: Uint8Array, options: object) => Buffer;
  zstdDecompressSync: (bytes: Uint8Array) => Buffer;
};
const ZSTD_c_compressionLevel = 100;
const fastest = { params: { [ZSTD_c_compressionLevel]: 1 } };

/** What unpacks the stream, and can tell where the content that it is given goes. */
export type Unpacker = TarHandler & {
  /** Of the file that is being written, in the tree; undefined: the content goes nowhere. */
  readonly writing: string | undefined;
  /** An entry took the place of an earlier one, whose content is gone. */
  readonly hasReplaced: boolean;
};

/** Stands between a tar reader and what unpacks, and writes the recipe while the stream passes. */
export class RecipeWriter implements TarHandler {
  readonly #unpacker: Unpacker;
  readonly #recipe: Descriptor;
  readonly #block = Buffer.alloc(blockBytes);
  #length = 0;
  /** Where in the block the BYTES part begins that may still grow; -1: there is none. */
  #run = -1;
  #written = 0;
  #chunk: Buffer = Buffer.alloc(0);
  /** Of the chunk, what is in the recipe. */
  #at = 0;
  /** Of the stream, all that came. */
  #streamBytes = 0;
  /** Content of one file that came in several chunks. */
  #file: { path: string; offset: number; length: number } | undefined;

  /** file: empty, open for writing; it stays the caller's. */
  constructor(unpacker: Unpacker, file: Descriptor) {
    this.#unpacker = unpacker;
    this.#recipe = file;
    writeAll(file, Buffer.alloc(lengthBytes));
  }

  /** The next bytes of the stream; push hands them to the reader whose handler this is. */
  pass(bytes: Uint8Array, push: (bytes: Uint8Array) => void): void {
    this.#chunk = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.#at = 0;
    this.#streamBytes += bytes.length;
    push(this.#chunk);
    this.#bytesUpTo(this.#chunk.length);
  }

  entry(header: TarHeader): void {
    this.#unpacker.entry(header);
  }

  data(part: Uint8Array, offset: number): void {
    const path = this.#unpacker.writing;
    this.#unpacker.data(part, offset);
    // What the reader has copied from an earlier chunk is in the recipe already.
    if (path === undefined || path.length > pathMax) return;
    const at = part.byteOffset - this.#chunk.byteOffset;
    const isOfChunk = at >= this.#at && at + part.length <= this.#chunk.length;
    if (part.buffer !== this.#chunk.buffer || !isOfChunk) return;
    this.#bytesUpTo(at);
    this.#at = at + part.length;
    const file = this.#file;
    if (file?.path === path && file.offset + file.length === offset) file.length += part.length;
    else {
      this.#endFile();
      this.#file = { path, offset, length: part.length };
    }
  }

  entryEnd(): void {
    this.#unpacker.entryEnd();
  }

  /** The stream has ended; where it cannot be made again, nothing but that stays in the file. */
  end(): void {
    this.#endFile();
    this.#flush();
    const isWhole = this.#written <= recipeBytesMax && !this.#unpacker.hasReplaced;
    if (!isWhole) return fs.ftruncateSync(this.#recipe.fd, lengthBytes);
    const length = Buffer.alloc(lengthBytes);
    length.writeBigUInt64LE(BigInt(this.#streamBytes));
    writeAll(this.#recipe, length, 0);
  }

  #bytesUpTo(end: number): void {
    while (this.#at < end) {
      this.#endFile();
      if (this.#run < 0) this.#startRun();
      const count = Math.min(end - this.#at, blockBytes - this.#length);
      this.#chunk.copy(this.#block, this.#length, this.#at, this.#at + count);
      this.#length += count;
      this.#at += count;
      if (this.#length === blockBytes) this.#flush();
    }
  }

  #startRun(): void {
    if (this.#length + headBytes >= blockBytes) this.#flush();
    this.#run = this.#length;
    this.#block[this.#run] = BYTES;
    this.#length += headBytes;
  }

  #endRun(): void {
    if (this.#run < 0) return;
    this.#block.writeUInt32LE(this.#length - this.#run - headBytes, this.#run + 1);
    this.#run = -1;
  }

  #endFile(): void {
    const file = this.#file;
    if (file === undefined) return;
    this.#file = undefined;
    this.#endRun();
    const path = Buffer.from(pathOf(file.path) as string);
    if (this.#length + headBytes + path.length + fileTailBytes > blockBytes) this.#flush();
    const block = this.#block;
    let at = block.writeUInt8(FILE, this.#length);
    at = block.writeUInt32LE(path.length, at);
    at += path.copy(block, at);
    at = block.writeBigUInt64LE(BigInt(file.offset), at);
    this.#length = block.writeBigUInt64LE(BigInt(file.length), at);
  }

  #flush(): void {
    this.#endRun();
    if (this.#length === 0 || this.#written > recipeBytesMax) this.#length = 0;
    if (this.#length === 0) return;
    const packed = zstdCompressSync(this.#block.subarray(0, this.#length), fastest);
    const head = Buffer.alloc(4);
    head.writeUInt32LE(packed.length);
    writeAll(this.#recipe, head);
    writeAll(this.#recipe, packed);
    this.#written += packed.length;
    this.#length = 0;
  }
}

/** The length of the stream that a recipe makes; 0 where there is none, or it cannot. */
export function recipeLength(path: string): number {
  try {
    using recipe = Descriptor.open(path, fs.constants.O_RDONLY);
    return Number(readExactly(recipe, lengthBytes)?.readBigUInt64LE() ?? 0n);
  } catch {
    return 0; // it is not there, or cut off
  }
}

/** The parts of a recipe, in the stream's order. @throws CriError DATA_LOSS when it is damaged. */
export function* readRecipe(recipe: Descriptor): Generator<RecipePart, void, undefined> {
  readExactly(recipe, lengthBytes);
  for (;;) {
    const head = readExactly(recipe, 4);
    if (head === undefined) return;
    const length = head.readUInt32LE();
    if (length > 2 * blockBytes) throw damaged();
    const packed = readExactly(recipe, length);
    if (packed === undefined) throw damaged();
    yield* partsOf(unpacked(packed));
  }
}

function unpacked(packed: Uint8Array): Buffer {
  try {
    return zstdDecompressSync(packed);
  } catch {
    throw damaged();
  }
}

function* partsOf(block: Buffer): Generator<RecipePart, void, undefined> {
  for (let at = 0; at < block.length;) {
    if (at + headBytes > block.length) throw damaged();
    const kind = block[at];
    const end = at + headBytes + block.readUInt32LE(at + 1);
    const bytes = block.subarray(at + headBytes, end);
    if (end + (kind === FILE ? fileTailBytes : 0) > block.length) throw damaged();
    if (kind === FILE) {
      const [offset, length] = [block.readBigUInt64LE(end), block.readBigUInt64LE(end + 8)];
      yield { kind: "file", path: bytes, offset: Number(offset), length: Number(length) };
      at = end + fileTailBytes;
    } else {
      yield { kind: "bytes", bytes };
      at = end;
    }
  }
}

function readExactly({ fd }: Descriptor, length: number): Buffer | undefined {
  const bytes = Buffer.alloc(length);
  for (let at = 0; at < length;) {
    const count = fs.readSync(fd, bytes, at, length - at, null);
    if (count === 0) {
      if (at === 0) return undefined;
      throw damaged();
    }
    at += count;
  }
  return bytes;
}

function damaged(): CriError {
  return new CriError("DATA_LOSS", "the layer's recipe on this node is damaged: pull it again");
}
