// Speaks ttrpc (containerd/ttrpc, PROTOCOL.md) in both directions over one connection, on top of NRI's
// multiplexer (containerd/nri, pkg/net/multiplex).
//
//   multiplexer frame   u32 connection, u32 length, payload (≤ 4 MiB + 10)
//   ttrpc message       u32 length, u32 stream, u8 type, u8 flags, body (≤ 4 MiB); all big-endian
//
// On connection 1 the peer serves and this side calls, on connection 2 the other way round. Frames, messages
// and reads end independently of each other.
//
// A violation closes the connection with a reason. It never throws at the reader, and at most one message is
// buffered for each connection.
import type { Duplex } from "node:stream";
import protobuf from "protobufjs/minimal.js";
import { codeOf, CriError, grpcCodes, messageOf, type ErrorCode } from "../base/errors.ts";
import { toLong } from "../base/int64.ts";

export const ttrpcBodyMax = 4 << 20;
const headerBytes = 10;
/** Bytes of a frame that the Go stub reads at once. */
const smallBytesMax = 4096;
const frameHeaderBytes = 8;
const frameMax = ttrpcBodyMax + headerBytes;

const REQUEST = 1;
const RESPONSE = 2;
/** Connections of the multiplexer. */
const OUTGOING = 1;
const INCOMING = 2;

/** Requests of the peer that are served at once; another one gets RESOURCE_EXHAUSTED. */
const servedMax = 32;
/** Output buffered for a peer that does not read. */
const unreadBytesMax = 16 << 20;

/** A call without an answer: DEADLINE_EXCEEDED, or UNAVAILABLE when the connection has ended. */
export class NoAnswer extends CriError {}

type TtrpcOptions = {
  /** The full name of the service that the peer may call. */
  service: string;
  /** Serves the peer's calls. @throws CriError, whose code and message the peer gets. */
  serve: (method: string, payload: Uint8Array) => Promise<Uint8Array>;
  /** Called once, when the connection has ended. */
  onClose: (reason: string) => void;
};

type Pending = {
  method: string;
  resolve: (payload: Uint8Array) => void;
  reject: (error: Error) => void;
  timer: ReturnType<typeof setTimeout>;
};

type Message = { stream: number; type: number; body: Uint8Array };

export class TtrpcConnection {
  readonly #socket: Duplex;
  readonly #options: TtrpcOptions;
  readonly #frames: Frames;
  readonly #pending = new Map<number, Pending>();
  /** The next call's; a client's are odd. */
  #stream = 1;
  #served = 0;
  #closed: string | undefined;

  constructor(socket: Duplex, options: TtrpcOptions) {
    this.#socket = socket;
    this.#options = options;
    this.#frames = new Frames({
      [OUTGOING]: new Messages((message) => this.#answered(message)),
      [INCOMING]: new Messages((message) => this.#asked(message)),
    });
    socket.on("data", (chunk: Buffer) => this.#read(chunk));
    socket.on("end", () => this.close("the peer has closed it"));
    socket.on("error", (error) => this.close(messageOf(error)));
    socket.on("close", () => this.close("the peer has closed it"));
  }

  /** The reason for the connection's end; undefined while it is open. */
  get closed(): string | undefined {
    return this.#closed;
  }

  /** Closes the connection; pending calls fail. */
  close(reason: string): void {
    if (this.#closed !== undefined) return;
    this.#closed = reason;
    for (const { method, reject, timer } of this.#pending.values()) {
      clearTimeout(timer);
      reject(new NoAnswer("UNAVAILABLE", `${method}: the connection has ended: ${reason}`));
    }
    this.#pending.clear();
    this.#socket.destroy();
    this.#options.onClose(reason);
  }

  /**
   * Calls a method of the peer.
   * @throws NoAnswer; CriError RESOURCE_EXHAUSTED for a payload that is too large, before anything is sent;
   * CriError with the peer's code and message.
   */
  call(
    service: string,
    method: string,
    payload: Uint8Array,
    timeoutMs: number,
  ): Promise<Uint8Array> {
    if (this.#closed !== undefined) {
      const why = `${method}: the connection has ended: ${this.#closed}`;
      return Promise.reject(new NoAnswer("UNAVAILABLE", why));
    }
    const stream = this.#stream;
    this.#stream += 2;
    return new Promise((resolve, reject) => {
      const body = encodeRequest({ service, method, payload, timeoutMs });
      const bytes = lengthOf(body);
      if (bytes > ttrpcBodyMax) {
        reject(tooLarge(method, bytes));
        return;
      }
      const timer = setTimeout(() => {
        this.#pending.delete(stream);
        reject(new NoAnswer("DEADLINE_EXCEEDED", `${method}: no answer within ${timeoutMs} ms`));
      }, timeoutMs);
      this.#pending.set(stream, { method, resolve, reject, timer });
      this.#send(OUTGOING, { stream, type: REQUEST }, body);
    });
  }

  #read(chunk: Buffer): void {
    if (this.#closed !== undefined) return;
    try {
      this.#frames.feed(chunk, () => this.#closed !== undefined);
    } catch (error) {
      this.close(messageOf(error));
    }
  }

  #answered({ stream, type, body }: Message): void {
    if (type !== RESPONSE) throw new Error(`a message of type ${type} instead of a response`);
    const pending = this.#pending.get(stream);
    if (pending === undefined) {
      const late = stream % 2 === 1 && stream < this.#stream;
      if (late) return; // its deadline had passed
      throw new Error(`a response to stream ${stream}, on which no call is pending`);
    }
    const response = decodeResponse(body);
    this.#pending.delete(stream);
    clearTimeout(pending.timer);
    if (response.code === 0) pending.resolve(response.payload);
    else pending.reject(new CriError(codeName(response.code), response.message));
  }

  #asked({ stream, type, body }: Message): void {
    if (type !== REQUEST) throw new Error(`a message of type ${type} instead of a request`);
    this.#answer(stream, decodeRequest(body)).catch((error) => this.close(messageOf(error)));
  }

  async #answer(stream: number, { service, method, payload }: Request): Promise<void> {
    let body: Uint8Array;
    this.#served++;
    try {
      if (this.#served > servedMax) {
        throw new CriError(
          "RESOURCE_EXHAUSTED",
          `${servedMax} calls are being served: retry later`,
        );
      }
      if (service !== this.#options.service) {
        throw new CriError("UNIMPLEMENTED", `there is no service ${service} here`);
      }
      body = encodeResponse({ payload: await this.#options.serve(method, payload) });
      if (body.length > ttrpcBodyMax) throw tooLarge(method, body.length);
    } catch (error) {
      body = encodeResponse({ code: grpcCodes[codeOf(error)], message: messageOf(error) });
    } finally {
      this.#served--;
    }
    this.#send(INCOMING, { stream, type: RESPONSE }, [body]);
  }

  /**
   * Sends a small message as one frame, and a body over 4 KiB in a frame after the header's: in one frame
   * they end the reader of a plugin on the Go stub, and in more they overflow its queue of 256 frames.
   */
  #send(connection: number, { stream, type }: Omit<Message, "body">, body: Uint8Array[]): void {
    if (this.#closed !== undefined) return;
    if (this.#socket.writableLength > unreadBytesMax) {
      this.close(`the peer leaves more than ${unreadBytesMax} bytes unread`);
      return;
    }
    const length = lengthOf(body);
    const header = Buffer.alloc(headerBytes);
    header.writeUInt32BE(length, 0);
    header.writeUInt32BE(stream, 4);
    header[8] = type;
    const parts =
      headerBytes + length <= smallBytesMax
        ? [frameHeader(connection, headerBytes + length), header, ...body]
        : [frameHeader(connection, headerBytes), header, frameHeader(connection, length), ...body];
    this.#socket.write(Buffer.concat(parts));
  }
}

function frameHeader(connection: number, length: number): Buffer {
  const bytes = Buffer.alloc(frameHeaderBytes);
  bytes.writeUInt32BE(connection, 0);
  bytes.writeUInt32BE(length, 4);
  return bytes;
}

function lengthOf(parts: Uint8Array[]): number {
  return parts.reduce((sum, part) => sum + part.length, 0);
}

function tooLarge(method: string, bytes: number): CriError {
  const text = `${method}: a message of ${bytes} bytes; at most ${ttrpcBodyMax} can be sent`;
  return new CriError("RESOURCE_EXHAUSTED", text);
}

/** Fills a buffer from chunks; feed() takes as much of a chunk as is missing. */
class Filler {
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

/** Parses frames and passes their payload on at once, without buffering a frame. */
class Frames {
  readonly #connections: Record<number, Messages>;
  #header = new Filler(frameHeaderBytes);
  #target: Messages | undefined;
  #left = 0;

  constructor(connections: Record<number, Messages>) {
    this.#connections = connections;
  }

  /** @throws for an invalid frame. */
  feed(chunk: Buffer, ended: () => boolean): void {
    let rest = chunk;
    while (rest.length > 0 && !ended()) {
      if (this.#left > 0) {
        const piece = rest.subarray(0, this.#left);
        this.#left -= piece.length;
        this.#target!.feed(piece, ended);
        rest = rest.subarray(piece.length);
        continue;
      }
      rest = rest.subarray(this.#header.feed(rest));
      if (this.#header.full) this.#begin();
    }
  }

  #begin(): void {
    const id = this.#header.bytes.readUInt32BE(0);
    this.#left = this.#header.bytes.readUInt32BE(4);
    this.#header = new Filler(frameHeaderBytes);
    this.#target = this.#connections[id];
    if (this.#target === undefined) throw new Error(`a frame for connection ${id}, not 1 or 2`);
    if (this.#left > frameMax) {
      throw new Error(`a frame of ${this.#left} bytes; at most ${frameMax} are allowed`);
    }
  }
}

/** Assembles messages from the frames of one connection. */
class Messages {
  readonly #onMessage: (message: Message) => void;
  #header = new Filler(headerBytes);
  #body: Filler | undefined;

  constructor(onMessage: (message: Message) => void) {
    this.#onMessage = onMessage;
  }

  feed(chunk: Buffer, ended: () => boolean): void {
    let rest = chunk;
    while (rest.length > 0 && !ended()) {
      rest = rest.subarray((this.#body ?? this.#header).feed(rest));
      if (this.#body === undefined && this.#header.full) this.#begin();
      if (this.#body?.full) this.#finish(this.#body.bytes);
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

type Request = { service: string; method: string; payload: Uint8Array };

/**
 * ttrpc.Request: service 1, method 2, payload 3, timeout_nano 4 (containerd/ttrpc, request.proto). In
 * parts, so that the payload is copied once.
 */
function encodeRequest(request: Request & { timeoutMs: number }): Uint8Array[] {
  const { service, method, payload, timeoutMs } = request;
  const head = protobuf.Writer.create().uint32(10).string(service).uint32(18).string(method);
  const tail = protobuf.Writer.create().uint32(32);
  return [
    head.uint32(26).uint32(payload.length).finish(),
    payload,
    tail.int64(toLong(timeoutMs * 1_000_000)).finish(),
  ];
}

/** @throws for an invalid message. */
function decodeRequest(body: Uint8Array): Request {
  const request: Request = { service: "", method: "", payload: new Uint8Array() };
  eachField(body, (field, reader) => {
    if (field === 10) request.service = reader.string();
    else if (field === 18) request.method = reader.string();
    else if (field === 26) request.payload = reader.bytes();
  });
  return request;
}

type Response = { code: number; message: string; payload: Uint8Array };

/** ttrpc.Response: status 1 (google.rpc.Status: code 1, message 2), payload 2. */
function encodeResponse({ code = 0, message = "", payload }: Partial<Response>): Uint8Array {
  const writer = protobuf.Writer.create();
  writer.uint32(10).fork();
  if (code !== 0) writer.uint32(8).int32(code).uint32(18).string(message);
  writer.ldelim();
  if (payload !== undefined && payload.length > 0) writer.uint32(18).bytes(payload);
  return writer.finish();
}

/** @throws for an invalid message. */
function decodeResponse(body: Uint8Array): Response {
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

function codeName(number: number): ErrorCode {
  const found = Object.entries(grpcCodes).find(([, code]) => code === number);
  return found === undefined ? "UNKNOWN" : (found[0] as ErrorCode);
}
