// Decompresses gzip and zstd by their magic bytes, as media types may be wrong; passes on anything else.
import type { Transform } from "node:stream";
import * as zlib from "node:zlib";
import { CriError, messageOf } from "../base/errors.ts";
import { chunkSize, freeChunk } from "../sys/chunks.ts";
import { isZstd, ZstdFrames } from "./zstd_frames.ts";

// @types/node 22.10 does not declare it.
const { createZstdDecompress } = zlib as unknown as {
  createZstdDecompress: (options: { chunkSize: number }) => Transform & zlib.Zlib;
};

/**
 * Hands all output to the sink before push() resolves: no data is in flight between two pushes. Zeros after
 * the compressed stream (padding of tapes and blocks) are ignored.
 */
export class Inflate {
  readonly #sink: (chunk: Uint8Array) => void;
  #head = Buffer.alloc(0);
  #stream: (Transform & zlib.Zlib) | undefined;
  #isPlain = false;
  #frames: ZstdFrames | undefined;
  #writtenBytes = 0;
  /** The decompressor has ended; it ends by itself when trailing bytes follow. */
  #hasEnded = false;
  #failure: Error | undefined;
  /** Ends the current wait: after a failure, or after its end, the decompressor calls no callback. */
  #endWait: (() => void) | undefined;

  constructor(sink: (chunk: Uint8Array) => void) {
    this.#sink = sink;
  }

  /** @throws CriError DATA_LOSS for data that does not decompress, or that follows the stream. */
  async push(chunk: Uint8Array): Promise<void> {
    let bytes = chunk;
    if (this.#stream === undefined && !this.#isPlain) {
      bytes = Buffer.concat([this.#head, chunk]);
      if (bytes.length < 4) {
        this.#head = Buffer.from(bytes);
        return;
      }
      this.#head = Buffer.alloc(0);
      this.#open(bytes);
    }
    if (this.#isPlain) this.#sink(bytes);
    else await this.#inflate(this.#stream!, bytes);
  }

  /** @throws CriError DATA_LOSS when the stream is truncated. */
  async end(): Promise<void> {
    if (this.#stream === undefined) {
      if (this.#head.length > 0) this.#sink(this.#head);
      return;
    }
    const stream = this.#stream;
    await this.#wait(() => stream.end());
    if (this.#frames?.isWhole === false) throw new CriError("DATA_LOSS", "it is truncated");
  }

  async #inflate(stream: Transform & zlib.Zlib, bytes: Uint8Array): Promise<void> {
    const ownBytes = this.#hasEnded ? 0 : (this.#frames?.push(bytes) ?? bytes.length);
    if (ownBytes > 0) {
      this.#writtenBytes += ownBytes;
      await this.#wait((onDone) => stream.write(bytes.subarray(0, ownBytes), onDone));
    }
    const restBytes = bytes.length - ownBytes + this.#writtenBytes - stream.bytesWritten;
    if (restBytes === 0) return;
    if (bytes.subarray(bytes.length - restBytes).some((byte) => byte !== 0)) {
      stream.destroy();
      throw new CriError("DATA_LOSS", "data follows its compressed stream");
    }
    this.#writtenBytes = stream.bytesWritten;
    await this.#wait(() => stream.end());
  }

  #open(head: Uint8Array): void {
    const magic = Buffer.from(head.buffer, head.byteOffset, 4).readUInt32LE(0);
    if ((magic & 0xffff) === 0x8b1f) this.#stream = zlib.createGunzip({ chunkSize });
    else if (isZstd(magic)) {
      this.#stream = createZstdDecompress({ chunkSize });
      this.#frames = new ZstdFrames();
    } else {
      this.#isPlain = true;
      return;
    }
    this.#stream.on("error", (error: Error) => this.#fail(error));
    for (const event of ["end", "close"]) {
      this.#stream.once(event, () => {
        this.#hasEnded = true;
        this.#endWait?.();
      });
    }
    this.#stream.on("data", (chunk: Uint8Array) => {
      if (this.#failure !== undefined) return;
      try {
        this.#sink(chunk);
        freeOutput(chunk);
      } catch (error) {
        this.#fail(error);
      }
    });
  }

  #fail(error: unknown): void {
    this.#failure ??= error instanceof Error ? error : new Error(messageOf(error));
    this.#endWait?.();
  }

  async #wait(start: (onDone: () => void) => void): Promise<void> {
    await new Promise<void>((resolve) => {
      this.#endWait = resolve;
      if (this.#hasEnded) resolve();
      else start(resolve);
    });
    this.#endWait = undefined;
    const failure = this.#failure;
    if (failure === undefined) return;
    this.#stream?.destroy();
    const code = (failure as NodeJS.ErrnoException).code;
    if (typeof code === "string" && /^(?:Z_|ZSTD_|ERR_)/.test(code)) {
      const message = `it does not decompress: ${messageOf(failure)}`;
      throw new CriError("DATA_LOSS", message, { cause: failure });
    }
    throw failure;
  }
}

/** Frees the decompressor's output buffer after the chunk that fills it up: the decompressor then takes another one. */
function freeOutput({ buffer, byteOffset, byteLength }: Uint8Array): void {
  if (byteOffset + byteLength === buffer.byteLength) freeChunk(new Uint8Array(buffer));
}
