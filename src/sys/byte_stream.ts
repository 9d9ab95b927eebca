// Turns a descriptor (socket, FIFO, terminal) into a byte stream with backpressure both ways: it reads only
// on request, and a write ends when the kernel has taken all bytes. Reads give way to other calls: a peer may always
// have more.
import { errnoOf } from "../base/errors.ts";
import { PeerTurn } from "../base/time_slices.ts";
import { queuesAreLarge } from "./chunk_queue.ts";
import { readNow, writeNow, type Descriptor } from "./descriptor.ts";
import { shutdownWrite } from "./tcp.ts";
import type { Poller } from "./poller.ts";

/** A transport: a descriptor, or messages inside another protocol. */
export type Wire = {
  /** Yields chunks, which the receiver may keep; ends when the peer half-closes or disconnects. */
  chunks(): AsyncIterable<Buffer>;
  /** Sends parts in one piece, not interleaved with other sends. @throws when the peer has disconnected. */
  send(...parts: Uint8Array[]): Promise<void>;
  close(): void;
};

const chunkBytes = 64 << 10;
/** The same while queues hold much. */
const scantBytes = 8 << 10;
/** Smaller reads are copied, so that they do not keep a whole chunk in memory. */
const smallBytes = 16 << 10;
/** The next chunk of whichever stream has input first: streams that wait hold none. */
let spare: Buffer | undefined;

export class ByteStream implements Wire, Disposable {
  readonly descriptor: Descriptor;
  readonly #poller: Poller;
  readonly #turn = new PeerTurn();
  #lastActive = performance.now();
  #sending: Promise<void> = Promise.resolve();

  /** descriptor: non-blocking; this object owns it from here on. */
  constructor(descriptor: Descriptor, poller: Poller) {
    this.descriptor = descriptor;
    this.#poller = poller;
  }

  get closed(): boolean {
    return !this.descriptor.isOpen;
  }

  /** Milliseconds since the last transfer in either direction. */
  get idleMs(): number {
    return performance.now() - this.#lastActive;
  }

  /** Returns the number of bytes read; 0 at the end, also after a reset. */
  async read(buffer: Uint8Array): Promise<number> {
    while (!this.closed) {
      if (this.#turn.isOver) await this.#turn.next();
      const count = this.readNow(buffer);
      if (count >= 0) return count;
      await this.readable();
    }
    return 0;
  }

  /** Waits until input may have arrived, or the stream is closed. */
  async readable(): Promise<void> {
    if (!this.closed) await this.#poller.readable(this.descriptor);
  }

  /** Like read(), without waiting: -1 when there is no input now. */
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
    while (!this.closed) {
      if (this.#turn.isOver) await this.#turn.next();
      const chunk = this.#chunkNow();
      if (chunk === undefined) await this.readable();
      else if (chunk.length > 0) yield chunk;
      else return;
    }
  }

  /** undefined: there is no input now; empty: the end. */
  #chunkNow(): Buffer | undefined {
    const buffer = (spare ??= Buffer.allocUnsafeSlow(chunkBytes));
    const count = this.readNow(queuesAreLarge() ? buffer.subarray(0, scantBytes) : buffer);
    if (count < 0) return undefined;
    if (count < smallBytes) return Buffer.from(buffer.subarray(0, count));
    spare = undefined;
    return buffer.subarray(0, count);
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

  /** Calls react once when a socket's peer closes or half-closes, even while nothing is read, or close() is called. */
  onHangup(react: () => void): void {
    this.#poller.onHangup(this.descriptor, react);
  }

  /** Half-closes a socket, after all that was sent. */
  async endWrite(): Promise<void> {
    await this.#sending;
    if (!this.closed) shutdownWrite(this.descriptor);
  }

  /** Closes at once: sends are cut off, and reads end. */
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
