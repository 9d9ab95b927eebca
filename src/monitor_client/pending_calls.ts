// Sends calls over the monitor's socket and matches each reply with its call.
import type { Socket } from "node:net";
import { CriError } from "../base/errors.ts";
import { writeFrame, type Calls, type ReplyHeader } from "../monitor/protocol.ts";

export type Reply = { result: unknown; body: Buffer };

export class PendingCalls {
  readonly #pending = new Map<number, PromiseWithResolvers<Reply>>();
  #seq = 0;

  get count(): number {
    return this.#pending.size;
  }

  send(socket: Socket, call: keyof Calls, params: unknown): Promise<Reply> {
    const seq = ++this.#seq;
    const pending = Promise.withResolvers<Reply>();
    this.#pending.set(seq, pending);
    try {
      writeFrame(socket, { call, seq, params });
    } catch (error) {
      this.#pending.delete(seq);
      pending.reject(error);
    }
    return pending.promise;
  }

  settle({ seq, result, error }: ReplyHeader, body: Buffer): void {
    const pending = this.#pending.get(seq);
    this.#pending.delete(seq);
    if (error === undefined) pending?.resolve({ result, body });
    else pending?.reject(new CriError(error.code, error.message));
  }

  /** Fails all calls: the monitor has closed the connection. */
  fail(): void {
    const lost = new CriError("UNAVAILABLE", "the monitor ended during the call; try again");
    for (const pending of this.#pending.values()) pending.reject(lost);
    this.#pending.clear();
  }
}
