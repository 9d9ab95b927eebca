// Encodes and decodes ttrpc's messages (containerd/ttrpc, PROTOCOL.md and request.proto).
//
//   message   u32 length, u32 stream, u8 type, u8 flags, body (≤ 4 MiB); all big-endian
import protobuf from "protobufjs/minimal.js";
import { grpcCodes, type ErrorCode } from "../base/errors.ts";
import { toLong } from "../base/int64.ts";

export const ttrpcBodyMax = 4 << 20;
export const headerBytes = 10;

export const REQUEST = 1;
export const RESPONSE = 2;

export type Message = { stream: number; type: number; body: Uint8Array };

/** Returns the header of a message whose body has `length` bytes. */
export function messageHeader({ stream, type }: Omit<Message, "body">, length: number): Buffer {
  const header = Buffer.alloc(headerBytes);
  header.writeUInt32BE(length, 0);
  header.writeUInt32BE(stream, 4);
  header[8] = type;
  return header;
}

export function lengthOf(parts: Uint8Array[]): number {
  return parts.reduce((sum, part) => sum + part.length, 0);
}

/** Fills a buffer from chunks; feed() takes as much of a chunk as is missing. */
export class Filler {
  readonly bytes: Buffer;
  #filled = 0;

  constructor(length: number) {
    this.bytes = Buffer.allocUnsafe(length);
  }

  get full(): boolean {
    return this.#filled === this.bytes.length;
  }

  /** Returns the bytes taken. */
  feed(chunk: Buffer): number {
    const taken = chunk.copy(this.bytes, this.#filled, 0);
    this.#filled += taken;
    return taken;
  }
}

/** Assembles the messages of one direction from the chunks that arrive. */
export class Messages {
  readonly #onMessage: (message: Message) => void;
  #header = new Filler(headerBytes);
  #body: Filler | undefined;

  constructor(onMessage: (message: Message) => void) {
    this.#onMessage = onMessage;
  }

  /** Yields after each step: the caller may give way. @throws for an invalid message. */
  *feed(chunk: Buffer, ended: () => boolean): Generator<void> {
    let rest = chunk;
    while (rest.length > 0 && !ended()) {
      rest = rest.subarray((this.#body ?? this.#header).feed(rest));
      if (this.#body === undefined && this.#header.full) this.#begin();
      if (this.#body?.full) this.#finish(this.#body.bytes);
      yield;
    }
  }

  #begin(): void {
    const length = this.#header.bytes.readUInt32BE(0);
    if (length > ttrpcBodyMax) {
      throw new Error(`a message of ${length} bytes; at most ${ttrpcBodyMax} are allowed`);
    }
    this.#body = new Filler(length);
  }

  #finish(body: Buffer): void {
    const { bytes } = this.#header;
    const message = { stream: bytes.readUInt32BE(4), type: bytes[8]!, body };
    this.#header = new Filler(headerBytes);
    this.#body = undefined;
    this.#onMessage(message);
  }
}

export type Request = { service: string; method: string; payload: Uint8Array };

/**
 * ttrpc.Request: service 1, method 2, payload 3, timeout_nano 4 (0: none), metadata 5 (key 1, value 2). In
 * parts, so that the payload is copied once.
 */
export function encodeRequest(
  request: Request & { timeoutMs: number; metadata?: Record<string, string> },
): Uint8Array[] {
  const { service, method, payload, timeoutMs, metadata = {} } = request;
  const head = protobuf.Writer.create().uint32(10).string(service).uint32(18).string(method);
  const tail = protobuf.Writer.create()
    .uint32(32)
    .int64(toLong(timeoutMs * 1_000_000));
  for (const [key, value] of Object.entries(metadata)) {
    tail.uint32(42).fork().uint32(10).string(key).uint32(18).string(value).ldelim();
  }
  return [head.uint32(26).uint32(payload.length).finish(), payload, tail.finish()];
}

/** @throws for an invalid message. */
export function decodeRequest(body: Uint8Array): Request {
  const request: Request = { service: "", method: "", payload: new Uint8Array() };
  eachField(body, (field, reader) => {
    if (field === 10) request.service = reader.string();
    else if (field === 18) request.method = reader.string();
    else if (field === 26) request.payload = reader.bytes();
  });
  return request;
}

export type Response = { code: number; message: string; payload: Uint8Array };

/** ttrpc.Response: status 1 (google.rpc.Status: code 1, message 2), payload 2. */
export function encodeResponse({ code = 0, message = "", payload }: Partial<Response>): Uint8Array {
  const writer = protobuf.Writer.create();
  writer.uint32(10).fork();
  if (code !== 0) writer.uint32(8).int32(code).uint32(18).string(message);
  writer.ldelim();
  if (payload !== undefined && payload.length > 0) writer.uint32(18).bytes(payload);
  return writer.finish();
}

/** @throws for an invalid message. */
export function decodeResponse(body: Uint8Array): Response {
  const response: Response = { code: 0, message: "", payload: new Uint8Array() };
  eachField(body, (field, reader) => {
    if (field === 10) Object.assign(response, decodeStatus(reader.bytes()));
    else if (field === 18) response.payload = reader.bytes();
  });
  return response;
}

function decodeStatus(body: Uint8Array): { code: number; message: string } {
  const status = { code: 0, message: "" };
  eachField(body, (field, reader) => {
    if (field === 8) status.code = reader.int32();
    else if (field === 18) status.message = reader.string();
  });
  return status;
}

/** Calls take for each field, with its tag (number × 8 + wire type); skips a field of which it reads nothing. */
function eachField(body: Uint8Array, take: (tag: number, reader: protobuf.Reader) => void): void {
  const reader = protobuf.Reader.create(body);
  while (reader.pos < reader.len) {
    const tag = reader.uint32();
    const { pos } = reader;
    take(tag, reader);
    if (reader.pos === pos) reader.skipType(tag & 7);
  }
}

export function codeName(number: number): ErrorCode {
  const found = Object.entries(grpcCodes).find(([, code]) => code === number);
  return found === undefined ? "UNKNOWN" : (found[0] as ErrorCode);
}
