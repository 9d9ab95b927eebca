// Speaks ttrpc (ttrpc_wire.ts) in both directions over one connection, on top of NRI's multiplexer
// (containerd/nri, pkg/net/multiplex).
//
//   multiplexer frame   u32 connection, u32 length, payload (≤ 4 MiB + 10); both big-endian
//
// On connection 1 the peer serves and this side calls, on connection 2 the other way round. Frames, messages
// and reads end independently of each other.
//
// A violation closes the connection with a reason. It never throws at the reader, and at most one message is
// buffered for each connection.
import type { Duplex } from "node:stream";
import { codeOf, CriError, grpcCodes, messageOf } from "../base/errors.ts";
import { connectionEnded, tooLarge, TtrpcCalls } from "./ttrpc_calls.ts";
import { takeInSteps } from "./socket_steps.ts";
import {
  decodeRequest,
  encodeResponse,
  Filler,
  headerBytes,
  lengthOf,
  messageHeader,
  Messages,
  REQUEST,
  RESPONSE,
  ttrpcBodyMax,
  type Message,
  type Request,
} from "./ttrpc_wire.ts";

/** Bytes of a frame that the Go stub reads at once. */
const smallBytesMax = 4096;
const frameHeaderBytes = 8;
const frameMax = ttrpcBodyMax + headerBytes;

/** Connections of the multiplexer. */
const OUTGOING = 1;
const INCOMING = 2;

/** Requests of the peer that are served at once; another one gets RESOURCE_EXHAUSTED. */
const servedMax = 32;
/** Output buffered for a peer that does not read. */
const unreadBytesMax = 16 << 20;

type TtrpcOptions = {
  /** The full name of the service that the peer may call. */
  service: string;
  /** Serves the peer's calls. @throws CriError, whose code and message the peer gets. */
  serve: (method: string, payload: Uint8Array) => Promise<Uint8Array>;
  /** Called once, when the connection has ended. */
  onClose: (reason: string) => void;
};

export class TtrpcConnection {
  readonly #socket: Duplex;
  readonly #options: TtrpcOptions;
  readonly #frames: Frames;
  readonly #calls = new TtrpcCalls((message, body) => this.#send(OUTGOING, message, body));
  #served = 0;
  #closed: string | undefined;

  constructor(socket: Duplex, options: TtrpcOptions) {
    this.#socket = socket;
    this.#options = options;
    this.#frames = new Frames({
      [OUTGOING]: new Messages((message) => this.#calls.answered(message)),
      [INCOMING]: new Messages((message) => this.#asked(message)),
    });
    const steps = (chunk: Buffer) => this.#frames.feed(chunk, () => this.#closed !== undefined);
    takeInSteps(socket, steps, (error) =>
      this.close(error === undefined ? "the peer has closed it" : messageOf(error)),
    );
    socket.on("error", (error) => this.close(messageOf(error)));
  }

  /** The reason for the connection's end; undefined while it is open. */
  get closed(): string | undefined {
    return this.#closed;
  }

  /** Closes the connection; pending calls fail. */
  close(reason: string): void {
    if (this.#closed !== undefined) return;
    this.#closed = reason;
    this.#calls.fail(reason);
    this.#socket.destroy();
    this.#options.onClose(reason);
  }

  /** Calls a method of the peer. @throws as TtrpcCalls.call() does. */
  call(
    service: string,
    method: string,
    payload: Uint8Array,
    timeoutMs: number,
  ): Promise<Uint8Array> {
    if (this.#closed !== undefined) return Promise.reject(connectionEnded(method, this.#closed));
    return this.#calls.call({ service, method, payload, timeoutMs });
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
  #send(connection: number, message: Omit<Message, "body">, body: Uint8Array[]): void {
    if (this.#closed !== undefined) return;
    if (this.#socket.writableLength > unreadBytesMax) {
      this.close(`the peer leaves more than ${unreadBytesMax} bytes unread`);
      return;
    }
    const length = lengthOf(body);
    const header = messageHeader(message, length);
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

/** Parses frames and passes their payload on at once, without buffering a frame. */
class Frames {
  readonly #connections: Record<number, Messages>;
  #header = new Filler(frameHeaderBytes);
  #target: Messages | undefined;
  #left = 0;

  constructor(connections: Record<number, Messages>) {
    this.#connections = connections;
  }

  /** Yields after each step. @throws for an invalid frame. */
  *feed(chunk: Buffer, ended: () => boolean): Generator<void> {
    let rest = chunk;
    while (rest.length > 0 && !ended()) {
      if (this.#left > 0) {
        const piece = rest.subarray(0, this.#left);
        this.#left -= piece.length;
        yield* this.#target!.feed(piece, ended);
        rest = rest.subarray(piece.length);
        continue;
      }
      rest = rest.subarray(this.#header.feed(rest));
      if (this.#header.full) this.#begin();
      yield;
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
