// gzip, zstd or nothing, told apart by the first bytes; media types are only a claim.
import type { Transform } from "node:stream";
import * as zlib from "node:zlib";
import { CriError, messageOf } from "../base/errors.ts";

const chunkSize = 256 << 10;

// Node's types of our minimum version do not know it yet.
const { createZstdDecompress } = zlib as unknown as {
  createZstdDecompress: (options: { chunkSize: number }) => Transform;
};

/** Passes on what it unpacks before push() resolves: nothing is in flight between two pushes. */
export class Inflate {
  readonly #sink: (chunk: Uint8Array) => void;
  #head = Buffer.alloc(0);
  #stream: Transform | undefined;
  #isPlain = false;
  #failure: Error | undefined;
  #onFailure: (() => void) | undefined;

  constructor(sink: (chunk: Uint8Array) => void) {
    this.#sink = sink;
  }

  async push(chunk: Uint8Array): Promise<void> {
    let bytes = chunk;
    if (this.#stream === undefined && !this.#isPlain) {
      bytes = Buffer.concat([this.#head, chunk]);
      if (bytes.length < 4) {
        this.#head = Buffer.from(bytes);
        return;
      }
      this.#open(bytes);
    }
    if (this.#isPlain) this.#sink(bytes);
    else await this.#wait((done) => this.#stream!.write(bytes, done));
  }

  /** @throws CriError DATA_LOSS when the stream is cut off. */
  async end(): Promise<void> {
    if (this.#stream === undefined) {
      if (this.#head.length > 0) this.#sink(this.#head);
      return;
    }
    const stream = this.#stream;
    await this.#wait((done) => {
      stream.once("end", done);
      stream.end();
    });
  }

  #open(head: Uint8Array): void {
    const magic = Buffer.from(head.buffer, head.byteOffset, 4).readUInt32LE(0);
    if ((magic & 0xffff) === 0x8b1f) this.#stream = zlib.createGunzip({ chunkSize });
    else if (magic === 0xfd2fb528 || (magic & 0xfffffff0) >>> 0 === 0x184d2a50) {
      this.#stream = createZstdDecompress({ chunkSize });
    } else {
      this.#isPlain = true;
      return;
    }
    this.#stream.on("error", (error: Error) => this.#fail(error));
    this.#stream.on("data", (chunk: Uint8Array) => {
      if (this.#failure !== undefined) return;
      try {
        this.#sink(chunk);
      } catch (error) {
        this.#fail(error);
      }
    });
  }

  #fail(error: unknown): void {
    this.#failure ??= error instanceof Error ? error : new Error(messageOf(error));
    this.#onFailure?.();
  }

  async #wait(start: (done: (error?: unknown) => void) => void): Promise<void> {
    await new Promise<void>((resolve) => {
      this.#onFailure = () => resolve();
      start(() => resolve());
    });
    this.#onFailure = undefined;
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
