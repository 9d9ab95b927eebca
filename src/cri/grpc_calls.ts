// Runs gRPC calls: decodes and validates the request, calls the handler, and sends its response or a
// status. Only here errors become status codes, and deadlines and cancellations become AbortSignals.
// Whatever a handler, an encoder or grpc-js throws, the call ends with a status.
import * as grpc from "@grpc/grpc-js";
import { untilAborted } from "../base/abort.ts";
import { beginCall, endActivity, within } from "../base/activity.ts";
import { codeOf, CriError, grpcCodes, messageOf } from "../base/errors.ts";
import { nowMs } from "../base/clock.ts";
import { encodeMessage, type Encoder } from "../base/protobuf.ts";
import { statusText } from "../base/status_text.ts";
import { Slices } from "../base/time_slices.ts";
import { withFullDisk } from "../layer/disk_space.ts";
import { validateRequest } from "./request_validation.ts";
import type { Call, Context } from "./context.ts";
import { subjectOf, type FailureLog } from "./failure_log.ts";
import { Encoded } from "./encoded_lists.ts";
import { endSlices, sendSlices, SlicedResponse } from "../base/sliced_response.ts";
import { isReadOnlyCall } from "../base/read_only_calls.ts";

export type Method = {
  request: { decode(bytes: Uint8Array): object };
  response: Encoder<never>;
  stream: boolean;
};

type Unary = (context: Context, request: object, call: Call) => object | Promise<object>;
type Send = (message: object) => Promise<void>;
type Stream = (context: Context, request: object, call: Call, send: Send) => Promise<void>;

/** An RPC without a handler returns UNIMPLEMENTED. */
export type Rpc<Handler> = {
  context: Context;
  failures: FailureLog;
  name: string;
  method: Method;
  handler: Handler | undefined;
  /** Calls wait for it: the daemon may still be starting. */
  ready?: Promise<void>;
};

type UnaryCall = grpc.ServerUnaryCall<Buffer, Buffer>;
type StreamCall = grpc.ServerWritableStream<Buffer, Buffer>;

export function answerUnary(rpc: Rpc<Unary>): grpc.handleUnaryCall<Buffer, Buffer> {
  return (call, reply) => {
    let response: Buffer | undefined;
    const run: Run<Unary> = async (handler, request, signal) => {
      const answered = await handler(rpc.context, request, { signal });
      if (answered instanceof SlicedResponse) {
        await using sliced = answered;
        checkSize(rpc, sliced.bytes);
        await sendSlices(call, sliced, signal);
      } else response = encode(rpc, answered);
    };
    const send: End = (failed) => {
      if (failed !== undefined) reply(failed);
      else if (response === undefined) endSlices(call);
      else reply(null, response);
    };
    answer(rpc, call, run).then((status) => end(rpc, status, send), abandon(rpc, send));
  };
}

export function answerStream(rpc: Rpc<Stream>): grpc.handleServerStreamingCall<Buffer, Buffer> {
  return (call) => {
    const run: Run<Stream> = (handler, request, signal) =>
      handler(rpc.context, request, { signal }, (message) => send(call, encode(rpc, message)));
    const finish: End = (failed) => {
      if (failed === undefined) call.end();
      else call.emit("error", failed);
    };
    answer(rpc, call, run).then((status) => end(rpc, status, finish), abandon(rpc, finish));
  };
}

type Run<Handler> = (handler: Handler, request: object, signal: AbortSignal) => Promise<void>;

/** Ends the call with a failure, or with success if it is undefined. */
type End = (failed: grpc.ServiceError | undefined) => void;

/** Runs the call and returns its failure; undefined for success. */
async function answer<Handler>(
  rpc: Rpc<Handler>,
  call: UnaryCall | StreamCall,
  run: Run<Handler>,
): Promise<grpc.ServiceError | undefined> {
  const { context, name, handler } = rpc;
  const signal = cancelledBy(call);
  let request: object | undefined;
  const started = startCall(context, name, {
    subject: () => subjectOf(context, request),
    traceparent: String(call.metadata.get("traceparent")[0] ?? ""),
  });
  try {
    if (handler === undefined) throw unimplemented(name);
    const slices = new Slices();
    request = decode(rpc, call.request);
    const decoded = request;
    await slices.pause(); // a request of some MiB takes its time
    validateRequest(name, decoded);
    await slices.pause();
    if (rpc.ready !== undefined) await untilAborted(rpc.ready, "the daemon's start", signal);
    await started.run(() => run(handler, decoded, signal));
    started.end();
    return undefined;
  } catch (thrown) {
    const error = await withFullDisk(thrown, context.config);
    // Undefined, which a handler may throw, would count as success.
    started.end(error ?? new CriError("INTERNAL", `${name} failed without an error`));
    rpc.failures.add(context, { call: name, request, error });
    context.health.noteFailure(error);
    return statusOf(error);
  }
}

/** Sends the outcome, or INTERNAL if grpc-js refuses to send it. */
function end(rpc: Rpc<unknown>, failed: grpc.ServiceError | undefined, send: End): void {
  try {
    send(failed);
  } catch (error) {
    const unsent = notSent(rpc, error);
    try {
      send(unsent);
    } catch (closed) {
      const fields = { call: rpc.name, error: messageOf(closed) };
      rpc.context.log.debug("stream closed before its status was sent", fields);
    }
  }
}

/** Handles a rejection of answer() itself: counting or logging the call has failed. */
function abandon(rpc: Rpc<unknown>, send: End): (error: unknown) => void {
  return (error) => end(rpc, notSent(rpc, error), send);
}

function notSent({ context, name, failures }: Rpc<unknown>, error: unknown): grpc.ServiceError {
  const why = `the response of ${name} could not be sent`;
  const failed = new CriError("INTERNAL", why, { cause: error });
  failures.add(context, { call: name, request: undefined, error: failed });
  return statusOf(failed);
}

function decode({ name, method }: Rpc<unknown>, bytes: Buffer): object {
  try {
    return method.request.decode(bytes);
  } catch (cause) {
    const why = `the request of ${name} cannot be decoded, or has text that is not UTF-8`;
    throw new CriError("INVALID_ARGUMENT", `${why}: ${messageOf(cause)}`, { cause });
  }
}

function encode(rpc: Rpc<unknown>, message: object): Buffer {
  const { response } = rpc.method;
  const bytes =
    message instanceof Encoded ? message.bytes : encodeMessage(response, message as never);
  checkSize(rpc, bytes.length);
  return bytes;
}

/** @throws CriError RESOURCE_EXHAUSTED for a response that is too large. */
function checkSize({ context, name }: Rpc<unknown>, bytes: number): void {
  const { maxSendBytes } = context.config;
  if (bytes <= maxSendBytes) return;
  const why = `the response of ${name} has ${bytes} bytes, over the ${maxSendBytes} of max-send-message-size`;
  throw new CriError("RESOURCE_EXHAUSTED", `${why}: use a filter, or the Stream call`);
}

type CallOptions = Parameters<typeof beginCall>[1];

/** Lists a call while it is in flight, and counts it as work. */
function startCall({ calls }: Context, name: string, options: CallOptions) {
  const begun = beginCall(name, options);
  const work = isReadOnlyCall(name) ? 0 : 1;
  calls.count += work;
  calls.running += work;
  return {
    run: <T>(run: () => T) => within(begun, run),
    end: (error?: unknown) => {
      endActivity(begun, error);
      calls.running -= work;
    },
  };
}

/** Applies backpressure: resolves once a slow reader has caught up. A cancelled call never drains. */
function send(call: StreamCall, message: Buffer): Promise<void> {
  if (call.write(message) || call.cancelled) return Promise.resolve();
  return new Promise((resolve) => {
    const done = () => {
      call.off("drain", done);
      call.off("cancelled", done);
      resolve();
    };
    call.on("drain", done);
    call.on("cancelled", done);
  });
}

/** Aborts when the client cancels or disconnects, or its deadline passes. */
function cancelledBy(call: UnaryCall | StreamCall): AbortSignal {
  const cancel = new AbortController();
  const begin = performance.now();
  const leftMs = Number(call.getDeadline()) - nowMs(); // grpc-js gives wall-clock time
  call.on("cancelled", () => {
    const late = Number.isFinite(leftMs) && performance.now() - begin >= leftMs - 1;
    const reason = late
      ? new DOMException("the client's deadline has passed", "TimeoutError")
      : new DOMException("the client has cancelled the call", "AbortError");
    cancel.abort(reason);
  });
  return cancel.signal;
}

function unimplemented(name: string): CriError {
  const why = "no OCI runtime checkpoints or restores a pod as a whole";
  return new CriError("UNIMPLEMENTED", `isulad-ts has no ${name}: ${why}`);
}

function statusOf(error: unknown): grpc.ServiceError {
  const details = statusText(messageOf(error));
  const code = grpcCodes[codeOf(error)];
  return Object.assign(new Error(details), { code, details, metadata: new grpc.Metadata() });
}
