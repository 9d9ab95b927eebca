// Matches the answers of a ttrpc peer to the calls that this side has made.
import { CriError } from "../base/errors.ts";
import {
  codeName,
  decodeResponse,
  encodeRequest,
  lengthOf,
  REQUEST,
  RESPONSE,
  ttrpcBodyMax,
  type Message,
} from "./ttrpc_wire.ts";

/** A call without an answer: DEADLINE_EXCEEDED, or UNAVAILABLE when the connection has ended. */
export class NoAnswer extends CriError {}

export type TtrpcCall = {
  service: string;
  method: string;
  payload: Uint8Array;
  /** 0: waits until the connection ends. */
  timeoutMs: number;
  metadata?: Record<string, string>;
};

type Pending = {
  method: string;
  resolve: (payload: Uint8Array) => void;
  reject: (error: Error) => void;
  timer?: ReturnType<typeof setTimeout>;
};

type Send = (message: Omit<Message, "body">, body: Uint8Array[]) => void;

export class TtrpcCalls {
  readonly #send: Send;
  readonly #pending = new Map<number, Pending>();
  /** The next call's; a client's are odd. */
  #stream = 1;

  constructor(send: Send) {
    this.#send = send;
  }

  /**
   * Calls a method of the peer.
   * @throws NoAnswer; CriError RESOURCE_EXHAUSTED for a payload that is too large, before anything is sent;
   * CriError with the peer's code and message.
   */
  call(call: TtrpcCall): Promise<Uint8Array> {
    const { method, timeoutMs } = call;
    const body = encodeRequest(call);
    const bytes = lengthOf(body);
    if (bytes > ttrpcBodyMax) return Promise.reject(tooLarge(method, bytes));
    const stream = this.#stream;
    this.#stream += 2;
    const answer = Promise.withResolvers<Uint8Array>();
    const pending: Pending = { method, ...answer };
    if (timeoutMs > 0) {
      pending.timer = setTimeout(() => {
        this.#pending.delete(stream);
        const message = `${method}: no answer within ${timeoutMs} ms`;
        answer.reject(new NoAnswer("DEADLINE_EXCEEDED", message));
      }, timeoutMs);
    }
    this.#pending.set(stream, pending);
    this.#send({ stream, type: REQUEST }, body);
    return answer.promise;
  }

  /** Takes a message of the peer. @throws if it answers no call. */
  answered({ stream, type, body }: Message): void {
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

  /** Fails all calls under way: the connection has ended. */
  fail(reason: string): void {
    for (const { method, reject, timer } of this.#pending.values()) {
      clearTimeout(timer);
      reject(connectionEnded(method, reason));
    }
    this.#pending.clear();
  }
}

export function connectionEnded(method: string, reason: string): NoAnswer {
  return new NoAnswer("UNAVAILABLE", `${method}: the connection has ended: ${reason}`);
}

export function tooLarge(method: string, bytes: number): CriError {
  const text = `${method}: a message of ${bytes} bytes; at most ${ttrpcBodyMax} can be sent`;
  return new CriError("RESOURCE_EXHAUSTED", text);
}
