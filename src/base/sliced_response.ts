// Sends a large response of a unary call in slices, as fast as its client reads: the whole is never in memory, not even
// for a client that has stopped reading.
import type { ServerHttp2Stream } from "node:http2";
import { setTimeout as sleep } from "node:timers/promises";
import * as grpc from "@grpc/grpc-js";
import { abortError, throwIfAborted } from "./abort.ts";
import { CriError } from "./errors.ts";

/** Limit for a client that does not read. */
const stalledMs = 60_000;

/** The encoded response, in slices. Disposed of once it was sent, or when that has failed. */
export class SlicedResponse implements AsyncDisposable {
  readonly bytes: number;
  readonly slices: AsyncIterable<Uint8Array>;
  readonly #close: () => Promise<void>;

  /** bytes: of all slices; a slice may be overwritten once the next one is requested. */
  constructor(bytes: number, slices: AsyncIterable<Uint8Array>, close: () => Promise<void>) {
    this.bytes = bytes;
    this.slices = slices;
    this.#close = close;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#close();
  }
}

/** What grpc-js has behind a unary call, and does not declare. */
type Inner = {
  stream: ServerHttp2Stream;
  sendStatus(status: { code: grpc.status; details: string; metadata: null }): void;
};

function innerOf(call: grpc.ServerUnaryCall<Buffer, Buffer>): Inner {
  return (call as unknown as { call: Inner }).call;
}

/** Sends all but the status. @throws when the client has gone or does not read. */
export async function sendSlices(
  call: grpc.ServerUnaryCall<Buffer, Buffer>,
  { bytes, slices }: SlicedResponse,
  signal: AbortSignal,
): Promise<void> {
  const { stream } = innerOf(call);
  call.sendMetadata(new grpc.Metadata());
  const prefix = Buffer.alloc(5); // not compressed, length
  prefix.writeUInt32BE(bytes, 1);
  await write(stream, prefix, signal);
  for await (const slice of slices) await write(stream, slice, signal);
}

/** Ends the call with success after its slices. */
export function endSlices(call: grpc.ServerUnaryCall<Buffer, Buffer>): void {
  innerOf(call).sendStatus({ code: grpc.status.OK, details: "OK", metadata: null });
}

/** Resolves when the bytes have left this process: node:http2 keeps what the client's window has no room for. */
async function write(
  stream: ServerHttp2Stream,
  bytes: Uint8Array,
  signal: AbortSignal,
): Promise<void> {
  throwIfAborted("sending a response", signal);
  const done = new AbortController();
  const { promise: written, resolve, reject } = Promise.withResolvers<"written">();
  const onAbort = () => reject(abortError("sending a response", signal));
  signal.addEventListener("abort", onAbort, { once: true });
  stream.write(bytes, (error) => (error ? reject(error) : resolve("written")));
  const stalled = sleep(stalledMs, "stalled" as const, { signal: done.signal });
  stalled.catch(() => {}); // it ends with the write
  try {
    if ((await Promise.race([written, stalled])) === "written") return;
    stream.close(8); // CANCEL: a status would wait for the client, too
    const message = `the client has not read its response for ${stalledMs / 1000} s`;
    throw new CriError("DEADLINE_EXCEEDED", message);
  } finally {
    done.abort();
    signal.removeEventListener("abort", onAbort);
  }
}
