// Runs a plugin without a stub, which can violate the protocol.
import { createConnection, type Socket } from "node:net";
import protobuf from "protobufjs/minimal.js";
import { nri } from "../../src/proto/nri.js";
import { field, frame, message, onMessage, request } from "../sys/frames.ts";

const api = nri.pkg.api.v1alpha1;
export const runtimeService = "nri.pkg.api.v1alpha1.Runtime";

/** Encoded answers by method, possibly late; undefined: no answer. A rejection is answered with its message. */
export type Answers = Record<string, (request: Uint8Array) => Answer | Promise<Answer>>;
type Answer = Uint8Array | undefined;

export class RawPlugin implements Disposable {
  readonly socket: Socket;
  readonly heard: { method: string; payload: Uint8Array }[] = [];
  readonly ended: Promise<void>;
  #stream = 1;
  #held: Buffer[] | undefined;
  readonly #asked = new Map<number, (body: Buffer) => void>();

  constructor(path: string, answers: Answers) {
    this.socket = createConnection(path);
    this.socket.on("error", () => {});
    this.ended = new Promise((resolve) => this.socket.once("close", () => resolve()));
    onMessage(this.socket, ({ connection, stream, body }) => {
      if (connection === 2) {
        this.#asked.get(stream)?.(body);
        return;
      }
      const { method, payload } = decoded(body);
      this.heard.push({ method, payload });
      void this.#answer(stream, (answers[method] ?? (() => new Uint8Array()))(payload));
    });
  }

  async #answer(stream: number, given: Answer | Promise<Answer>): Promise<void> {
    const response = await Promise.resolve(given).then(
      (answer) => answer && field(18, answer),
      (error: Error) => field(10, refusal(error.message)),
    );
    if (response !== undefined) this.#write(frame(1, message(stream, 2, response)));
  }

  #write(bytes: Buffer): void {
    if (this.#held === undefined) this.socket.write(bytes);
    else this.#held.push(bytes);
  }

  /** Keeps what is sent from now on; release() sends it in one write. */
  hold(): void {
    this.#held = [];
  }

  release(): void {
    this.socket.write(Buffer.concat(this.#held ?? []));
    this.#held = undefined;
  }

  /** Calls the runtime; returns the answer's payload. @throws with the runtime's message. */
  call(method: string, payload: Uint8Array): Promise<Buffer> {
    const stream = this.#stream;
    this.#stream += 2;
    return new Promise((resolve, reject) => {
      this.#asked.set(stream, (body) => {
        const { status, payload } = response(body);
        if (status === "") resolve(payload);
        else reject(new Error(status));
      });
      this.#write(frame(2, message(stream, 1, request(runtimeService, method, payload))));
    });
  }

  /** Registers; `answers` defines the rest of the handshake. */
  async register(index: string, name: string): Promise<void> {
    const identity = { plugin_idx: index, plugin_name: name };
    await this.call("RegisterPlugin", api.RegisterPluginRequest.encode(identity).finish());
  }

  times(method: string): number {
    return this.heard.filter((one) => one.method === method).length;
  }

  [Symbol.dispose](): void {
    this.socket.destroy();
  }
}

/** A google.rpc.Status of an unknown error. */
function refusal(text: string): Buffer {
  return Buffer.concat([Buffer.from([8, 2]), field(18, Buffer.from(text))]);
}

function decoded(body: Buffer): { method: string; payload: Uint8Array } {
  const reader = protobuf.Reader.create(body);
  let [method, payload] = ["", new Uint8Array()];
  while (reader.pos < reader.len) {
    const tag = reader.uint32();
    if (tag === 18) method = reader.string();
    else if (tag === 26) payload = new Uint8Array(reader.bytes());
    else reader.skipType(tag & 7);
  }
  return { method, payload };
}

function response(body: Buffer): { status: string; payload: Buffer } {
  const reader = protobuf.Reader.create(body);
  let [status, payload] = ["", Buffer.alloc(0)];
  while (reader.pos < reader.len) {
    const tag = reader.uint32();
    if (tag === 10) {
      const inner = protobuf.Reader.create(reader.bytes());
      while (inner.pos < inner.len) {
        const innerTag = inner.uint32();
        if (innerTag === 18) status = inner.string();
        else inner.skipType(innerTag & 7);
      }
    } else if (tag === 18) payload = Buffer.from(reader.bytes());
    else reader.skipType(tag & 7);
  }
  return { status, payload };
}
