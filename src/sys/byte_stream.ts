// A descriptor (socket, FIFO, terminal) as a stream of bytes with backpressure both ways: nothing is
// read before it is asked for, and a write ends when the kernel has taken all of it.
import { errnoOf } from "../base/errors.ts";
import { readNow, writeNow, type Descriptor } from "./descriptor.ts";
import { shutdownWrite } from "./tcp.ts";
import type { Poller } from "./poller.ts";

/** What is spoken over: a descriptor, or messages inside another protocol. */
export type Wire = {
  /** Chunks as they come, the receiver's to keep; ends when the peer sends no more or has gone. */
  chunks(): AsyncIterable<Buffer>;
  /** Parts that belong together, unmixed with other sends. @throws when the peer has gone. */
  send(...parts: Uint8Array[]): Promise<void>;
  close(): void;
};

const chunkBytes = 64 << 10;
/** Less than this of a chunk is copied out of it, so that it does not hold the whole. */
const smallBytes = 16 << 10;

export class ByteStream implements Wire, Disposable {
  readonly descriptor: Descriptor;
  readonly #poller: Poller;
  #lastActive = performance.now();
  #sending: Promise<void> = Promise.resolve();

  /** descriptor: does not block, and is this object's from here on. */
  constructor(descriptor: Descriptor, poller: Poller) {
    this.descriptor = descriptor;
    this.#poller = poller;
  }

  get closed(): boolean {
    return !this.descriptor.isOpen;
  }

  /** Milliseconds since bytes went either way. */
  get idleMs(): number {
    return performance.now() - this.#lastActive;
  }

  /** Bytes read; 0 at the end, also one that the peer has forced. */
  async read(buffer: Uint8Array): Promise<number> {
    while (!this.closed) {
      const count = this.readNow(buffer);
      if (count >= 0) return count;
      await this.readable();
    }
    return 0;
  }

  /** Until there may be something to read, or this is closed. */
  async readable(): Promise<void> {
    if (!this.closed) await this.#poller.readable(this.descriptor);
  }

  /** As read; -1 when there is nothing now. */
  readNow(buffer: Uint8Array): number {
    if (this.closed) return 0;
    try {
      const count = readNow(this.descriptor, buffer);
      if (count > 0) this.#lastActive = performance.now();
      return count;
    } catch (error) {
      if (errnoOf(error) === "ECONNRESET") return 0;
      throw error;
    }
  }

  async *chunks(): AsyncIterable<Buffer> {
    for (let buffer = Buffer.allocUnsafeSlow(chunkBytes); ;) {
      const count = await this.read(buffer);
      if (count === 0) return;
      if (count < smallBytes) {
        yield Buffer.from(buffer.subarray(0, count));
      } else {
        yield buffer.subarray(0, count);
        buffer = Buffer.allocUnsafeSlow(chunkBytes);
      }
    }
  }

  send(...parts: Uint8Array[]): Promise<void> {
    const sent = this.#sending.then(() => this.#write(parts));
    this.#sending = sent.catch(() => {});
    return sent;
  }

  async #write(parts: Uint8Array[]): Promise<void> {
    let left = parts.filter((part) => part.length > 0);
    while (left.length > 0) {
      if (this.closed) throw new Error("the stream is closed");
      const count = writeNow(this.descriptor, left);
      if (count === -1) await this.#poller.writable(this.descriptor);
      else {
        this.#lastActive = performance.now();
        left = after(left, count);
      }
    }
  }

  /** A socket's peer has gone, or sends no more; told also while nothing is read. */
  onHangup(react: () => void): void {
    this.#poller.onHangup(this.descriptor, react);
  }

  /** Of a socket: what was sent is all that comes. */
  async endWrite(): Promise<void> {
    await this.#sending;
    if (!this.closed) shutdownWrite(this.descriptor);
  }

  /** At once: what is being sent is cut off, and a read ends. */
  close(): void {
    this.#poller.forget(this.descriptor);
    this.descriptor.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

function after(parts: Uint8Array[], count: number): Uint8Array[] {
  let left = count;
  for (const [index, part] of parts.entries()) {
    if (left < part.length) return [part.subarray(left), ...parts.slice(index + 1)];
    left -= part.length;
  }
  return [];
}
