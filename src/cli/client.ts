// Typed client of the daemon's gRPC services over its unix socket, for the CLI and tests.
import * as grpc from "@grpc/grpc-js";
import { CriError, type ErrorCode, grpcCodes } from "../base/errors.ts";
import { encodeMessage, type Encoder } from "../base/protobuf.ts";
import { ImageService, NodeService, RuntimeService } from "../proto/services.ts";

export const defaultHost = "unix:///var/run/isulad.sock";

/** timeoutMs: 0 for no deadline. signal: cancels the call when aborted. */
type CallOptions = { timeoutMs?: number; signal?: AbortSignal };

type Method = {
  request: Encoder<never>;
  response: { decode(bytes: Uint8Array): object };
  stream: boolean;
};
type Request<M extends Method> = Parameters<M["request"]["encode"]>[0];
type Response<M extends Method> = ReturnType<M["response"]["decode"]>;
type Call<M extends Method> = M["stream"] extends true
  ? (request: Request<M>, options?: CallOptions) => AsyncIterable<Response<M>>
  : (request: Request<M>, options?: CallOptions) => Promise<Response<M>>;
type Calls<S extends Record<string, Method>> = { [Name in keyof S]: Call<S[Name]> };

/** All RPCs by name. They throw CriError with the daemon's code and message. */
export type Client = Calls<typeof RuntimeService> &
  Calls<typeof ImageService> &
  Calls<typeof NodeService> & { close(): void; [Symbol.dispose](): void };

const services: Record<string, Record<string, Method>> = {
  "runtime.v1.RuntimeService": RuntimeService,
  "runtime.v1.ImageService": ImageService,
  "isulad.v1.NodeService": NodeService,
};

const timeoutMsDefault = 120_000;
// The kubelet's limit, so that tests fail on messages that it cannot read.
const messageBytesMax = 16 * 1024 * 1024;

/** host: `unix:///path`, `unix:path` or a bare path. Connects on the first call. */
export function connect(host: string = defaultHost): Client {
  const target = host.includes(":") ? host : `unix:${host}`;
  const channel = new grpc.Client(target, grpc.credentials.createInsecure(), {
    "grpc.max_receive_message_length": messageBytesMax,
    "grpc.enable_http_proxy": 0,
    "grpc.use_local_subchannel_pool": 1,
  });
  const close = () => channel.close();
  const client: Record<string | symbol, unknown> = { close, [Symbol.dispose]: close };
  for (const [service, methods] of Object.entries(services)) {
    for (const [name, method] of Object.entries(methods)) {
      const call = { channel, host, path: `/${service}/${name}`, method };
      client[name] = method.stream
        ? (request: object, options?: CallOptions) => serverStream(call, request, options)
        : (request: object, options?: CallOptions) => unary(call, request, options);
    }
  }
  return client as Client;
}

type Target = { channel: grpc.Client; host: string; path: string; method: Method };

function unary(target: Target, request: object, options: CallOptions = {}): Promise<object> {
  const { method } = target;
  const { promise, resolve, reject } = Promise.withResolvers<object>();
  const call = target.channel.makeUnaryRequest<object, object>(
    target.path,
    (message) => encode(method, message),
    (bytes) => method.response.decode(bytes),
    request,
    callOptions(options, timeoutMsDefault),
    (error, value) =>
      value === undefined || error ? reject(asCriError(error, target)) : resolve(value),
  );
  const unlink = cancelOnAbort(call, options.signal);
  return promise.finally(unlink);
}

async function* serverStream(
  target: Target,
  request: object,
  options: CallOptions = {},
): AsyncGenerator<object> {
  const { method } = target;
  const call = target.channel.makeServerStreamRequest<object, object>(
    target.path,
    (message) => encode(method, message),
    (bytes) => method.response.decode(bytes),
    request,
    callOptions(options, 0),
  );
  const unlink = cancelOnAbort(call, options.signal);
  try {
    yield* call as AsyncIterable<object>;
  } catch (error) {
    throw asCriError(error, target);
  } finally {
    unlink();
    call.on("error", () => {}); // The cancellation below emits an error.
    call.cancel();
  }
}

function encode(method: Method, message: object): Buffer {
  return encodeMessage(method.request, message as never);
}

function callOptions(options: CallOptions, timeoutMs: number): grpc.CallOptions {
  const limitMs = options.timeoutMs ?? timeoutMs;
  return limitMs > 0 ? { deadline: Date.now() + limitMs } : {};
}

function cancelOnAbort(call: { cancel(): void }, signal: AbortSignal | undefined): () => void {
  const cancel = () => call.cancel();
  if (signal?.aborted) cancel();
  signal?.addEventListener("abort", cancel, { once: true });
  return () => signal?.removeEventListener("abort", cancel);
}

function asCriError(error: unknown, target: Target): CriError {
  const { code, details } = (error ?? {}) as Partial<grpc.ServiceError>;
  const name = nameOfCode(code);
  // grpc-js's own error, without an answer of the daemon.
  if (name === "UNAVAILABLE" && details?.startsWith("No connection established")) {
    const message = `Cannot reach the daemon at ${target.host}: ${unreachableReason(details)}`;
    return new CriError(name, message, { cause: error });
  }
  // grpc-js's own error, too: the daemon ended while it worked on this call.
  if (name === "UNAVAILABLE" && details === "Connection dropped") {
    const message = `the daemon at ${target.host} has ended during this call: repeat it when it runs again`;
    return new CriError(name, message, { cause: error });
  }
  if (name === "UNIMPLEMENTED" && target.path.startsWith("/isulad.")) {
    const message = `${target.host} is the socket of another runtime, or of an older isulad-ts: use --host`;
    return new CriError(name, message, { cause: error });
  }
  return new CriError(name, details || `${target.path} failed: ${String(error)}`, { cause: error });
}

/** Returns the reason in grpc-js's text, and what to try next. */
export function unreachableReason(details: string): string {
  const errno = /\bE[A-Z]{3,}\b/.exec(details)?.[0] ?? "";
  const settings = "--host, $ISULAD_HOST, $CONTAINER_RUNTIME_ENDPOINT or /etc/crictl.yaml";
  const next = `Is it running? Another socket is set by ${settings}.`;
  const known: Record<string, string> = {
    ENOENT: `no such socket. ${next}`,
    ECONNREFUSED: `connection refused. ${next}`,
    EACCES: 'permission denied. Be root, or in the socket\'s group ("group" in daemon.json).',
  };
  return known[errno] ?? `${details}. ${next}`;
}

function nameOfCode(code: number | undefined): ErrorCode {
  const names = Object.keys(grpcCodes) as ErrorCode[];
  return names.find((name) => grpcCodes[name] === code) ?? "UNKNOWN";
}
