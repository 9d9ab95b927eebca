// Calls a ttrpc server (ttrpc_wire.ts) over a unix socket, such as a shim.
import { createConnection, type Socket } from "node:net";
import { CriError, messageOf } from "../base/errors.ts";
import { takeInSteps } from "./socket_steps.ts";
import { connectionEnded, TtrpcCalls, type TtrpcCall } from "./ttrpc_calls.ts";
import { lengthOf, messageHeader, Messages } from "./ttrpc_wire.ts";

/** Requests buffered for a server that does not read. */
const unreadBytesMax = 16 << 20;

export class TtrpcClient implements Disposable {
  readonly #socket: Socket;
  readonly #calls: TtrpcCalls;
  readonly #onClose: (reason: string) => void;
  #closed: string | undefined;

  /** onClose: called once, when the connection has ended, also by close(). */
  constructor(socket: Socket, onClose: (reason: string) => void) {
    this.#socket = socket;
    this.#onClose = onClose;
    this.#calls = new TtrpcCalls((message, body) => {
      const header = messageHeader(message, lengthOf(body));
      socket.write(Buffer.concat([header, ...body]));
      const unread = `the server leaves more than ${unreadBytesMax} bytes unread`;
      if (socket.writableLength > unreadBytesMax) this.close(unread);
    });
    const messages = new Messages((message) => this.#calls.answered(message));
    const steps = (chunk: Buffer) => messages.feed(chunk, () => this.#closed !== undefined);
    takeInSteps(socket, steps, (error) =>
      this.close(error === undefined ? "the server has closed it" : messageOf(error)),
    );
    socket.on("error", (error) => this.close(messageOf(error)));
  }

  /** Calls a method of the server. @throws as TtrpcCalls.call() does. */
  call(call: TtrpcCall): Promise<Uint8Array> {
    if (this.#closed !== undefined) {
      return Promise.reject(connectionEnded(call.method, this.#closed));
    }
    return this.#calls.call(call);
  }

  /** Closes the connection; pending calls fail. */
  close(reason: string): void {
    if (this.#closed !== undefined) return;
    this.#closed = reason;
    this.#calls.fail(reason);
    this.#socket.destroy();
    this.#onClose(reason);
  }

  [Symbol.dispose](): void {
    this.close("this side has closed it");
  }
}

/**
 * Connects to the unix socket at path.
 * @throws CriError UNAVAILABLE when nobody listens; DEADLINE_EXCEEDED after timeoutMs.
 */
export function connectTtrpc(
  path: string,
  options: { timeoutMs: number; onClose: (reason: string) => void },
): Promise<TtrpcClient> {
  const { promise, resolve, reject } = Promise.withResolvers<TtrpcClient>();
  const socket = createConnection(path);
  const late = setTimeout(() => {
    socket.destroy();
    const message = `${path} does not accept a connection within ${options.timeoutMs} ms`;
    reject(new CriError("DEADLINE_EXCEEDED", message));
  }, options.timeoutMs);
  const failed = (cause: Error) => {
    clearTimeout(late);
    const message = `cannot connect to ${path}: ${messageOf(cause)}`;
    reject(new CriError("UNAVAILABLE", message, { cause }));
  };
  socket.once("error", failed);
  socket.once("connect", () => {
    clearTimeout(late);
    socket.off("error", failed);
    resolve(new TtrpcClient(socket, options.onClose));
  });
  return promise;
}
