// Provides a gRPC server with the daemon's services; a test implements the calls that it needs.
import { rmSync } from "node:fs";
import * as grpc from "@grpc/grpc-js";
import { grpcCodes, CriError } from "../../src/base/errors.ts";
import type { Client } from "../../src/cli/client.ts";
import { ImageService, NodeService, RuntimeService } from "../../src/proto/services.ts";

type Names = Exclude<keyof Client, "close" | symbol>;
type Answer<N extends Names> = Awaited<ReturnType<Client[N]>>;
/** Answers by RPC name; a stream's answer is an (async) iterable. Others answer UNIMPLEMENTED. */
export type Handlers = {
  [N in Names]?: (request: Parameters<Client[N]>[0], signal: AbortSignal) => Loose<Answer<N>>;
};
type Loose<T> =
  T extends AsyncIterable<infer Item>
    ? AsyncIterable<Partial<Item>>
    : Partial<T> | Promise<Partial<T>>;

type Coder = {
  encode(message: object): { finish(): Uint8Array };
  decode(bytes: Uint8Array): object;
};
type AnyHandler = (request: object, signal: AbortSignal) => object | Promise<object>;

const services: Record<string, object> = {
  "runtime.v1.RuntimeService": RuntimeService,
  "runtime.v1.ImageService": ImageService,
  "isulad.v1.NodeService": NodeService,
};

/** Serves on `path` until it is disposed of. `calls` are the names called, in order. */
export async function fakeDaemon(
  path: string,
  handlers: Handlers,
): Promise<AsyncDisposable & { host: string; calls: string[] }> {
  const server = new grpc.Server();
  const calls: string[] = [];
  for (const [service, methods] of Object.entries(services)) {
    const definition: Record<string, grpc.MethodDefinition<object, object>> = {};
    const implementation: Record<string, grpc.UntypedHandleCall> = {};
    for (const [name, method] of Object.entries(methods)) {
      const handler = (handlers as Record<string, AnyHandler>)[name];
      definition[name] = definitionOf(`/${service}/${name}`, method);
      implementation[name] = implement(method.stream, (request, signal) => {
        calls.push(name);
        if (!handler) throw new CriError("UNIMPLEMENTED", `${name} is not faked`);
        return handler(request, signal);
      });
    }
    server.addService(definition, implementation);
  }
  const bind = Promise.withResolvers<void>();
  const credentials = grpc.ServerCredentials.createInsecure();
  server.bindAsync(`unix:${path}`, credentials, (error) =>
    error ? bind.reject(error) : bind.resolve(),
  );
  await bind.promise;
  return {
    host: `unix://${path}`,
    calls,
    async [Symbol.asyncDispose]() {
      server.forceShutdown();
      rmSync(path, { force: true });
    },
  };
}

function definitionOf(
  path: string,
  method: { request: Coder; response: Coder; stream: boolean },
): grpc.MethodDefinition<object, object> {
  return {
    path,
    requestStream: false,
    responseStream: method.stream,
    requestSerialize: (message) => Buffer.from(method.request.encode(message).finish()),
    requestDeserialize: (bytes) => method.request.decode(bytes),
    responseSerialize: (message) => Buffer.from(method.response.encode(message).finish()),
    responseDeserialize: (bytes) => method.response.decode(bytes),
  };
}

function implement(stream: boolean, handler: AnyHandler): grpc.UntypedHandleCall {
  if (stream) {
    return (call: grpc.ServerWritableStream<object, object>) => {
      void (async () => {
        for await (const item of handler(call.request, abortedWith(call)) as AsyncIterable<object>)
          call.write(item);
        call.end();
      })().catch((error) => call.emit("error", statusOf(error)));
    };
  }
  return (call: grpc.ServerUnaryCall<object, object>, done: grpc.sendUnaryData<object>) => {
    void (async () => handler(call.request, abortedWith(call)))().then(
      (response) => done(null, response),
      (error) => done(statusOf(error)),
    );
  };
}

function abortedWith(call: {
  once(event: "cancelled", listener: () => void): unknown;
}): AbortSignal {
  const abort = new AbortController();
  call.once("cancelled", () => abort.abort());
  return abort.signal;
}

function statusOf(error: unknown): { code: number; details: string } {
  const code = error instanceof CriError ? grpcCodes[error.code] : grpcCodes.UNKNOWN;
  return { code, details: error instanceof Error ? error.message : String(error) };
}
