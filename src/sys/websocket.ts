// Speaks WebSocket (RFC 6455) over a byte stream, for both ends. A message is passed on in pieces as it
// arrives, so that messages need no size limit.
import { createHash, randomBytes } from "node:crypto";
import { PeerTurn } from "../base/time_slices.ts";
import type { Wire } from "./byte_stream.ts";
import { FramePace } from "./frame_pace.ts";
import { pingWhileStalled } from "./stall_ping.ts";

/** A piece of a message; first, last: it begins or ends the message. */
export type Piece = { first: boolean; last: boolean; bytes: Buffer };

/** What the protocol restricts in a frame's head. */
type Head = { opcode: number; fin: boolean; masked: boolean; length: number; reserved: number };
type Frame = { opcode: number; fin: boolean; mask: Buffer | undefined; left: number; at: number };

const CONTINUATION = 0;
const TEXT = 1;
const BINARY = 2;
const CLOSE = 8;
const PING = 9;
const PONG = 10;
const controlBytesMax = 125;

export const closeNormal = 1000;
const closeProtocolError = 1002;
export const closeInvalidData = 1007;

export class ProtocolError extends Error {
  readonly code: number;

  constructor(code: number, message: string) {
    super(message);
    this.code = code;
  }
}

/** Returns the server's answer to the client's Sec-WebSocket-Key (section 4.2.2). */
export function acceptKey(key: string): string {
  const magic = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
  return createHash("sha1")
    .update(key + magic)
    .digest("base64");
}

export class WebSocketConnection {
  readonly #wire: Wire;
  /** Clients mask their frames, servers do not; each side refuses the opposite. */
  readonly #isClient: boolean;
  #kept: Buffer = Buffer.alloc(0);
  #frame: Frame | undefined;
  #control: Buffer[] = [];
  /** A message has begun and not ended. */
  #inMessage = false;
  /** The last data frame was not its message's final one. */
  #fragmented = false;
  #closeSent = false;

  constructor(wire: Wire, role: "client" | "server") {
    this.#wire = wire;
    this.#isClient = role === "client";
  }

  /** Yields messages to the connection's end, text as its bytes, and answers pings. @throws ProtocolError. */
  async *pieces(): AsyncGenerator<Piece> {
    const turn = new PeerTurn();
    const pace = new FramePace();
    try {
      for await (const chunk of this.#wire.chunks()) {
        for (const { opcode, piece } of this.#push(chunk)) {
          if (turn.isOver) await turn.next();
          const isEmpty = opcode !== BINARY || piece.bytes.length === 0;
          if (isEmpty && pace.isSpent()) await pace.rest();
          if (opcode === BINARY) {
            if (isEmpty && !piece.last) continue;
            using _ = pingWhileStalled(() => this.#send(PING, Buffer.alloc(0)));
            yield piece;
          } else if (opcode === PING) await this.#send(PONG, piece.bytes);
          else if (opcode === CLOSE) {
            await this.close(closeNormal).catch(() => {}); // the peer may have disconnected
            return;
          }
        }
      }
    } catch (error) {
      if (error instanceof ProtocolError) await this.close(error.code).catch(() => {});
      throw error;
    }
  }

  /** Sends all parts as one binary message. */
  async send(...parts: Uint8Array[]): Promise<void> {
    await this.#send(BINARY, ...parts);
  }

  /** Sends one text message. */
  async sendText(text: string): Promise<void> {
    await this.#send(TEXT, Buffer.from(text));
  }

  /** Sends a close frame, once. */
  async close(code: number): Promise<void> {
    if (this.#closeSent) return;
    this.#closeSent = true;
    const payload = Buffer.alloc(2);
    payload.writeUInt16BE(code);
    await this.#send(CLOSE, payload);
  }

  async #send(opcode: number, ...parts: Uint8Array[]): Promise<void> {
    const length = parts.reduce((sum, part) => sum + part.length, 0);
    const head = headOf(opcode, length, this.#isClient);
    if (!this.#isClient) return this.#wire.send(head, ...parts);
    const key = randomBytes(4);
    const body = Buffer.concat(parts);
    unmask(body, key, 0);
    return this.#wire.send(head, key, body);
  }

  *#push(chunk: Buffer): Generator<{ opcode: number; piece: Piece }> {
    let rest = this.#kept.length === 0 ? chunk : Buffer.concat([this.#kept, chunk]);
    for (;;) {
      if (this.#frame === undefined) {
        const used = this.#begin(rest);
        if (used === 0) break;
        rest = rest.subarray(used);
      }
      const frame = this.#frame!;
      const bytes = rest.subarray(0, frame.left);
      rest = rest.subarray(bytes.length);
      if (frame.mask !== undefined) unmask(bytes, frame.mask, frame.at);
      frame.at += bytes.length;
      frame.left -= bytes.length;
      yield* this.#piece(frame, bytes);
      if (frame.left > 0) break;
      this.#frame = undefined;
    }
    this.#kept = rest;
  }

  *#piece(frame: Frame, bytes: Buffer): Generator<{ opcode: number; piece: Piece }> {
    const { opcode, fin, left } = frame;
    if (opcode >= CLOSE) {
      this.#control.push(bytes);
      if (left > 0) return;
      yield { opcode, piece: { first: true, last: true, bytes: Buffer.concat(this.#control) } };
      this.#control = [];
      return;
    }
    const first = !this.#inMessage;
    const last = fin && left === 0;
    if (bytes.length > 0 || last) this.#inMessage = !last;
    yield { opcode: BINARY, piece: { first, last, bytes } };
  }

  /** Parses a frame's head; returns its length, 0: it is not complete. */
  #begin(bytes: Buffer): number {
    if (bytes.length < 2) return 0;
    const opcode = bytes[0]! & 0x0f;
    const fin = bytes[0]! >> 7 === 1;
    const masked = bytes[1]! >> 7 === 1;
    let length = bytes[1]! & 0x7f;
    let used = length === 126 ? 4 : length === 127 ? 10 : 2;
    if (bytes.length < used + (masked ? 4 : 0)) return 0;
    if (used === 4) length = bytes.readUInt16BE(2);
    if (used === 10) length = Number(bytes.readBigUInt64BE(2));
    this.#check({ opcode, fin, masked, length, reserved: bytes[0]! & 0x70 });
    if (opcode < CLOSE) this.#fragmented = !fin;
    const mask = masked ? Buffer.from(bytes.subarray(used, used + 4)) : undefined;
    used += masked ? 4 : 0;
    this.#frame = { opcode, fin, mask, left: length, at: 0 };
    return used;
  }

  #check({ opcode, fin, masked, length, reserved }: Head): void {
    const refuse = (what: string) => {
      throw new ProtocolError(closeProtocolError, `WebSocket: ${what}`);
    };
    if (reserved !== 0) refuse("an extension that was not agreed on");
    if (masked === this.#isClient) refuse(masked ? "a masked frame" : "a frame without a mask");
    if (![CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG].includes(opcode))
      refuse(`opcode ${opcode}`);
    if (opcode === CONTINUATION && !this.#fragmented) refuse("a continuation without a message");
    if ((opcode === TEXT || opcode === BINARY) && this.#fragmented)
      refuse("a message inside another");
    if (opcode >= CLOSE && (length > controlBytesMax || !fin)) refuse("a long control frame");
    if (!Number.isSafeInteger(length)) refuse("a frame without end");
  }
}

function headOf(opcode: number, length: number, masked: boolean): Buffer {
  const bytes = length < 126 ? 2 : length < 1 << 16 ? 4 : 10;
  const head = Buffer.alloc(bytes);
  head[0] = 0x80 | opcode;
  head[1] = (masked ? 0x80 : 0) | (bytes === 2 ? length : bytes === 4 ? 126 : 127);
  if (bytes === 4) head.writeUInt16BE(length, 2);
  if (bytes === 10) head.writeBigUInt64BE(BigInt(length), 2);
  return head;
}

/** Masks or unmasks in place, words at a time; at: bytes of the frame before these. */
function unmask(bytes: Uint8Array, mask: Uint8Array, at: number): void {
  const lead = Math.min(-bytes.byteOffset & 3, bytes.length);
  unmaskBytes(bytes.subarray(0, lead), mask, at);
  const count = (bytes.length - lead) >> 2;
  const tail = lead + count * 4;
  unmaskBytes(bytes.subarray(tail), mask, at + tail);
  if (count === 0) return; // and there may be no word's boundary
  const words = new Uint32Array(bytes.buffer, bytes.byteOffset + lead, count);
  const key = Uint8Array.from([0, 1, 2, 3], (index) => mask[(at + lead + index) & 3]!);
  const [word] = new Uint32Array(key.buffer);
  for (let index = 0; index < count; index++) words[index]! ^= word!;
}

function unmaskBytes(bytes: Uint8Array, mask: Uint8Array, at: number): void {
  for (let index = 0; index < bytes.length; index++) {
    bytes[index]! ^= mask[(at + index) & 3]!;
  }
}

/** Carries another protocol inside messages: SPDY/3.1+portforward.k8s.io. */
export function tunnel(connection: WebSocketConnection, close: () => void): Wire {
  return {
    async *chunks() {
      for await (const { bytes } of connection.pieces()) if (bytes.length > 0) yield bytes;
    },
    send: (...parts) => connection.send(...parts),
    close,
  };
}
