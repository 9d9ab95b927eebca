// Parses and builds SPDY/3.1 frames (section 2.2); chunks may cut them anywhere.

export type Frame =
  /** A part of a data frame; fin: the last of its stream. */
  | { type: "data"; stream: number; bytes: Buffer; fin: boolean }
  | { type: "control"; kind: number; flags: number; payload: Buffer };

export const SYN_STREAM = 1;
export const SYN_REPLY = 2;
export const RST_STREAM = 3;
export const PING = 6;
export const GOAWAY = 7;
export const HEADERS = 8;
export const FLAG_FIN = 1;

const version = 3;
/** Limit of a control frame; those of kubelets and clients are below 1 KiB. */
const controlBytesMax = 64 << 10;

/** A buffer that is filled from chunks. */
class Filling {
  readonly bytes: Buffer;
  #filled = 0;

  constructor(length: number) {
    this.bytes = Buffer.allocUnsafe(length);
  }

  get isFull(): boolean {
    return this.#filled === this.bytes.length;
  }

  /** Returns what is left of the chunk. */
  take(chunk: Buffer): Buffer {
    const taken = chunk.copy(this.bytes, this.#filled);
    this.#filled += taken;
    return chunk.subarray(taken);
  }

  empty(): void {
    this.#filled = 0;
  }
}

const headBytes = 8;

/** Parses frames; buffers at most one control frame, however small the chunks are. */
export class FrameReader {
  readonly #head = new Filling(headBytes);
  /** The control frame that has begun. */
  #control: { kind: number; flags: number; payload: Filling } | undefined;
  /** The data frame that has begun, with the bytes that are missing. */
  #data: { stream: number; left: number; fin: boolean } | undefined;

  /** Yields the frames that this chunk completes, and its part of a data frame. */
  *push(chunk: Buffer): Generator<Frame> {
    for (let rest = chunk; rest.length > 0;) {
      if (this.#data !== undefined) {
        const bytes = rest.subarray(0, this.#data.left);
        rest = rest.subarray(bytes.length);
        yield this.#part(this.#data, bytes);
      } else if (this.#control !== undefined) {
        rest = this.#control.payload.take(rest);
      } else {
        rest = this.#head.take(rest);
        if (this.#head.isFull) this.#begin(this.#head.bytes);
      }
      if (this.#data?.left === 0) yield this.#part(this.#data, Buffer.alloc(0));
      if (this.#control?.payload.isFull === true) {
        const { kind, flags, payload } = this.#control;
        this.#control = undefined;
        yield { type: "control", kind, flags, payload: payload.bytes };
      }
    }
  }

  #part(data: { stream: number; left: number; fin: boolean }, bytes: Buffer): Frame {
    data.left -= bytes.length;
    const isLast = data.left === 0;
    if (isLast) this.#data = undefined;
    return { type: "data", stream: data.stream, bytes, fin: data.fin && isLast };
  }

  /** Parses a frame's head. */
  #begin(head: Buffer): void {
    this.#head.empty();
    const first = head.readUInt32BE(0);
    const flags = head[4]!;
    const length = head.readUIntBE(5, 3);
    if (first >>> 31 === 0) {
      this.#data = { stream: first, left: length, fin: (flags & FLAG_FIN) !== 0 };
      return;
    }
    if (((first >>> 16) & 0x7fff) !== version) {
      throw new Error(`a SPDY frame of version ${(first >>> 16) & 0x7fff}, not ${version}`);
    }
    if (length > controlBytesMax) {
      throw new Error(`a SPDY control frame of ${length} bytes: at most ${controlBytesMax}`);
    }
    this.#control = { kind: first & 0xffff, flags, payload: new Filling(length) };
  }
}

/** Builds a data frame's head. */
export function dataHead(stream: number, length: number, fin: boolean): Buffer {
  const head = Buffer.alloc(8);
  head.writeUInt32BE(stream);
  head[4] = fin ? FLAG_FIN : 0;
  head.writeUIntBE(length, 5, 3);
  return head;
}

export function controlFrame(kind: number, numbers: number[], block?: Buffer): Buffer {
  const length = numbers.length * 4 + (block?.length ?? 0);
  const frame = Buffer.alloc(8 + numbers.length * 4);
  frame.writeUInt32BE((0x80000000 | (version << 16) | kind) >>> 0);
  frame.writeUIntBE(length, 5, 3);
  numbers.forEach((number, index) => frame.writeUInt32BE(number, 8 + index * 4));
  return block === undefined ? frame : Buffer.concat([frame, block]);
}

/** Builds a SYN_STREAM frame; two bytes of priority stand between the ids and the headers. */
export function openingFrame(stream: number, block: Buffer): Buffer {
  return controlFrame(SYN_STREAM, [stream, 0], Buffer.concat([Buffer.alloc(2), block]));
}
