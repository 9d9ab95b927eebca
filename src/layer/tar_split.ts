// Reads and writes tar-splits: the bytes of a layer's tar stream that are not file content, and references to
// the files that contain the rest. A tree and its tar-split reproduce the stream byte for byte.
// Decision: `save` needs tar-splits because blobs are not kept. Repacked in any other order or form, a layer would
// have another diff ID, and its image another config and ID. A tar-split takes about 1 % of the layer's size
// and of the time to unpack it.
import * as fs from "node:fs";
import * as zlib from "node:zlib";
import { CriError } from "../base/errors.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { writeAll } from "../sys/file.ts";
import type { TarHandler, TarHeader } from "./tar_reader.ts";
import { pathOf } from "./tar_fields.ts";

/** A part of the stream: literal bytes, or a range of a file in the tree. */
type TarSplitPart =
  | { kind: "bytes"; bytes: Uint8Array }
  | { kind: "file"; path: Buffer; offset: number; length: number };

// On disk: the length of the whole stream (u64; 0: it cannot be reproduced), then blocks, each a length (u32)
// and that many bytes of zstd. A block has records: BYTES, u32 length, the bytes; or FILE, u32 length of
// the path, the path, offset and length as u64. All little-endian.
const BYTES = 0;
const FILE = 1;
const blockBytes = 256 << 10;
const lengthBytes = 8;
const headBytes = 5;
const fileTailBytes = 16;
/** In characters; the kernel accepts no longer paths. */
const pathMax = 16_384;
/** Of a tar-split on disk; a layer whose stream is mostly not file content gets none. */
const tarSplitBytesMax = 64 << 20;

// @types/node 22.10 does not declare them.
const { zstdCompressSync, zstdDecompressSync } = zlib as unknown as {
  zstdCompressSync: (bytes: Uint8Array, options: object) => Buffer;
  zstdDecompressSync: (bytes: Uint8Array) => Buffer;
};
const ZSTD_c_compressionLevel = 100;
const fastest = { params: { [ZSTD_c_compressionLevel]: 1 } };

/** Unpacks the stream and names the file to which content is written. */
export type Unpacker = TarHandler & {
  /** Path in the tree of the file being written; undefined: the content is discarded. */
  readonly writing: string | undefined;
  /** An entry replaced an earlier one, so that one's content is lost. */
  readonly hasReplaced: boolean;
};

/** Sits between a tar reader and an unpacker, and writes the tar-split as the stream passes. */
export class TarSplitWriter implements TarHandler {
  readonly #unpacker: Unpacker;
  readonly #tarSplit: Descriptor;
  readonly #block = Buffer.alloc(blockBytes);
  #length = 0;
  /** Start in the block of the BYTES record that is still growing; -1: none. */
  #run = -1;
  #written = 0;
  #chunk: Buffer = Buffer.alloc(0);
  /** Bytes of the chunk that are in the tar-split. */
  #at = 0;
  #streamBytes = 0;
  /** File content that may continue in the next chunk. */
  #file: { path: string; offset: number; length: number } | undefined;

  /** file: empty and open for writing; the caller closes it. */
  constructor(unpacker: Unpacker, file: Descriptor) {
    this.#unpacker = unpacker;
    this.#tarSplit = file;
    writeAll(file, Buffer.alloc(lengthBytes));
  }

  /** Takes the next bytes of the stream; push: passes them to the reader whose handler this is. */
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
    // Data that the reader copied from an earlier chunk is in the tar-split already.
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

  /** Finishes the file; if the stream cannot be reproduced, only a length of 0 stays in it. */
  end(): void {
    this.#endFile();
    this.#flush();
    const isWhole = this.#written <= tarSplitBytesMax && !this.#unpacker.hasReplaced;
    if (!isWhole) return fs.ftruncateSync(this.#tarSplit.fd, lengthBytes);
    const length = Buffer.alloc(lengthBytes);
    length.writeBigUInt64LE(BigInt(this.#streamBytes));
    writeAll(this.#tarSplit, length, 0);
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
    if (this.#written > tarSplitBytesMax) this.#length = 0; // end() drops it anyway
    if (this.#length === 0) return;
    const packed = zstdCompressSync(this.#block.subarray(0, this.#length), fastest);
    const head = Buffer.alloc(4);
    head.writeUInt32LE(packed.length);
    writeAll(this.#tarSplit, head);
    writeAll(this.#tarSplit, packed);
    this.#written += packed.length;
    this.#length = 0;
  }
}

/** Returns the length of the stream; 0: there is no tar-split, or the stream cannot be reproduced. */
export function tarSplitStreamBytes(path: string): number {
  try {
    using tarSplit = Descriptor.open(path, fs.constants.O_RDONLY);
    return Number(readExactly(tarSplit, lengthBytes)?.readBigUInt64LE() ?? 0n);
  } catch {
    return 0; // missing or truncated
  }
}

/** Yields the parts in the stream's order. @throws CriError DATA_LOSS when the tar-split is damaged. */
export function* readTarSplit(tarSplit: Descriptor): Generator<TarSplitPart, void, undefined> {
  readExactly(tarSplit, lengthBytes);
  for (;;) {
    const head = readExactly(tarSplit, 4);
    if (head === undefined) return;
    const length = head.readUInt32LE();
    if (length > 2 * blockBytes) throw damaged();
    const packed = readExactly(tarSplit, length);
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

function* partsOf(block: Buffer): Generator<TarSplitPart, void, undefined> {
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
  const hint = "remove the image and pull it again";
  return new CriError("DATA_LOSS", `the layer's tar-split on this node is damaged: ${hint}`);
}
