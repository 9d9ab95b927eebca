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

/** Parses frames; buffers at most one control frame. */
export class FrameReader {
  /** An incomplete head or control frame. */
  #kept: Buffer = Buffer.alloc(0);
  /** The data frame that has begun, with the bytes that are missing. */
  #data: { stream: number; left: number; fin: boolean } | undefined;

  /** Yields the frames that this chunk completes, and its part of a data frame. */
  *push(chunk: Buffer): Generator<Frame> {
    let rest = this.#kept.length === 0 ? chunk : Buffer.concat([this.#kept, chunk]);
    for (;;) {
      if (this.#data !== undefined) {
        const bytes = rest.subarray(0, this.#data.left);
        rest = rest.subarray(bytes.length);
        this.#data.left -= bytes.length;
        const { stream, left, fin } = this.#data;
        if (left === 0) this.#data = undefined;
        if (bytes.length > 0 || left === 0)
          yield { type: "data", stream, bytes, fin: fin && left === 0 };
        if (left > 0) break;
      }
      if (rest.length < 8) break;
      const used = yield* this.#frame(rest);
      if (used === 0) break;
      rest = rest.subarray(used);
    }
    this.#kept = rest;
  }

  /** Parses the frame at the start; returns its length, 0: it is not complete. */
  *#frame(bytes: Buffer): Generator<Frame, number> {
    const first = bytes.readUInt32BE(0);
    const flags = bytes[4]!;
    const length = bytes.readUIntBE(5, 3);
    if (first >>> 31 === 0) {
      this.#data = { stream: first, left: length, fin: (flags & FLAG_FIN) !== 0 };
      return 8;
    }
    if (((first >>> 16) & 0x7fff) !== version) {
      throw new Error(`a SPDY frame of version ${(first >>> 16) & 0x7fff}, not ${version}`);
    }
    if (length > controlBytesMax) {
      throw new Error(`a SPDY control frame of ${length} bytes: at most ${controlBytesMax}`);
    }
    if (bytes.length < 8 + length) return 0;
    const payload = bytes.subarray(8, 8 + length);
    yield { type: "control", kind: first & 0xffff, flags, payload };
    return 8 + length;
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
