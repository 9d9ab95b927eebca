// The gRPC server: every RPC of CRI and of our own service is registered; errors become status codes,
// deadlines and cancellations become AbortSignals, here and nowhere else.
import * as grpc from "@grpc/grpc-js";
import { codeOf, CriError, grpcCodes, messageOf } from "../base/errors.ts";
import { ImageService, NodeService, RuntimeService } from "../proto/services.ts";
import { checkRequest } from "./check.ts";
import type { Call, Context } from "./context.ts";
import * as container from "./container.ts";
import { createContainer } from "./container_create.ts";
import { getContainerEvents } from "./events.ts";
import { containerStatus, listContainers, streamContainers } from "./container_status.ts";
import { updateContainerResources } from "./container_update.ts";
import * as image from "./image.ts";
import { Encoded } from "./lists.ts";
import * as metrics from "./metrics.ts";
import * as nodeImages from "./node_images.ts";
import { nriPlugins } from "./nri_list.ts";
import { runtimeConfig, status, updateRuntimeConfig, versionOf } from "./runtime.ts";
import * as sandbox from "./sandbox.ts";
import { runPodSandbox } from "./sandbox_run.ts";
import { updatePodSandboxResources } from "./sandbox_update.ts";
import * as stats from "./stats.ts";
import * as stream from "./stream.ts";

type Method = {
  request: { decode(bytes: Uint8Array): object };
  response: { encode(message: never): { finish(): Uint8Array } };
  stream: boolean;
};
type Services = typeof RuntimeService & typeof ImageService & typeof NodeService;
type Request<Name extends keyof Services> = ReturnType<Services[Name]["request"]["decode"]>;
type Response<Name extends keyof Services> = Parameters<Services[Name]["response"]["encode"]>[0];
type Answer<Name extends keyof Services> = Response<Name> | Encoded;
type Send<Message> = (message: Message) => Promise<void>;

/** What is served. CheckpointPod and RestorePod are not here, and answer UNIMPLEMENTED. */
type Handlers = {
  [Name in keyof Services]?: Services[Name]["stream"] extends true
    ? (
        context: Context,
        request: Request<Name>,
        call: Call,
        send: Send<Answer<Name>>,
      ) => Promise<void>
    : (
        context: Context,
        request: Request<Name>,
        call: Call,
      ) => Answer<Name> | Promise<Answer<Name>>;
};

const handlers: Handlers = {
  Version: versionOf,
  Status: status,
  RuntimeConfig: runtimeConfig,
  UpdateRuntimeConfig: updateRuntimeConfig,
  RunPodSandbox: runPodSandbox,
  StopPodSandbox: sandbox.stopPodSandbox,
  RemovePodSandbox: sandbox.removePodSandbox,
  UpdatePodSandboxResources: updatePodSandboxResources,
  PodSandboxStatus: sandbox.podSandboxStatus,
  ListPodSandbox: sandbox.listPodSandbox,
  StreamPodSandboxes: sandbox.streamPodSandboxes,
  CreateContainer: createContainer,
  StartContainer: container.startContainer,
  StopContainer: container.stopContainer,
  RemoveContainer: container.removeContainer,
  ContainerStatus: containerStatus,
  ListContainers: listContainers,
  StreamContainers: streamContainers,
  ContainerStats: stats.containerStats,
  ListContainerStats: stats.listContainerStats,
  StreamContainerStats: stats.streamContainerStats,
  PodSandboxStats: stats.podSandboxStats,
  ListPodSandboxStats: stats.listPodSandboxStats,
  StreamPodSandboxStats: stats.streamPodSandboxStats,
  UpdateContainerResources: updateContainerResources,
  ListMetricDescriptors: metrics.listMetricDescriptors,
  ListPodSandboxMetrics: metrics.listPodSandboxMetrics,
  StreamPodSandboxMetrics: metrics.streamPodSandboxMetrics,
  CheckpointContainer: container.checkpointContainer,
  GetContainerEvents: getContainerEvents,
  ReopenContainerLog: container.reopenContainerLog,
  ExecSync: container.execSync,
  Exec: stream.exec,
  Attach: stream.attach,
  PortForward: stream.portForward,
  PullImage: image.pullImage,
  ImageStatus: image.imageStatus,
  ListImages: image.listImages,
  StreamImages: image.streamImages,
  RemoveImage: image.removeImage,
  ImageFsInfo: image.imageFsInfo,
  Pull: nodeImages.pull,
  Load: nodeImages.load,
  Save: nodeImages.save,
  PruneImages: nodeImages.pruneImages,
  VerifyImages: nodeImages.verifyImages,
  CheckRegistry: nodeImages.checkRegistry,
  NriPlugins: nriPlugins,
};

/**
 * runtime.v1alpha2, for kubelets of 1.20 to 1.25: the same messages under the old name, for the RPCs
 * of that time (cri-api 0.25).
 */
const alphaRuntime = `
  Version RunPodSandbox StopPodSandbox RemovePodSandbox PodSandboxStatus ListPodSandbox
  CreateContainer StartContainer StopContainer RemoveContainer ListContainers ContainerStatus
  UpdateContainerResources ReopenContainerLog ExecSync Exec Attach PortForward ContainerStats
  ListContainerStats PodSandboxStats ListPodSandboxStats UpdateRuntimeConfig Status`
  .trim()
  .split(/\s+/);
const alphaImage = ["ListImages", "ImageStatus", "PullImage", "RemoveImage", "ImageFsInfo"];

/** What kubelets and we allow a message to have. */
const messageBytesMax = 16 << 20;

export function createServer(context: Context): grpc.Server {
  const server = new grpc.Server({
    "grpc.max_receive_message_length": messageBytesMax,
    "grpc.max_send_message_length": -1,
  });
  register(server, context, "runtime.v1.RuntimeService", RuntimeService);
  register(server, context, "runtime.v1.ImageService", ImageService);
  register(server, context, "isulad.v1.NodeService", NodeService);
  register(server, context, "runtime.v1alpha2.RuntimeService", pick(RuntimeService, alphaRuntime));
  register(server, context, "runtime.v1alpha2.ImageService", pick(ImageService, alphaImage));
  return server;
}

function pick(methods: Record<string, Method>, names: string[]): Record<string, Method> {
  return Object.fromEntries(names.map((name) => [name, methods[name]!]));
}

function register(
  server: grpc.Server,
  context: Context,
  service: string,
  methods: Record<string, Method>,
): void {
  const definition: Record<string, grpc.MethodDefinition<object, object>> = {};
  const implementation: grpc.UntypedServiceImplementation = {};
  for (const [name, method] of Object.entries(methods)) {
    definition[name] = {
      path: `/${service}/${name}`,
      requestStream: false,
      responseStream: method.stream,
      requestSerialize: () => Buffer.alloc(0), // a server sends no requests
      requestDeserialize: (bytes) => method.request.decode(bytes),
      responseSerialize: (message) => encode(method, message),
      responseDeserialize: (bytes) => bytes,
    };
    implementation[name] = method.stream
      ? (call: grpc.ServerWritableStream<object, object>) => void answerStream(context, name, call)
      : (call: grpc.ServerUnaryCall<object, object>, reply: grpc.sendUnaryData<object>) =>
          void answer(context, name, call, reply);
  }
  server.addService(definition, implementation);
}

function encode(method: Method, message: object): Buffer {
  if (message instanceof Encoded) return message.bytes;
  const bytes = method.response.encode(message as never).finish();
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

type Unary = (context: Context, request: object, call: Call) => object | Promise<object>;
type Stream = (context: Context, request: object, call: Call, send: Send<object>) => Promise<void>;

async function answer(
  context: Context,
  name: string,
  call: grpc.ServerUnaryCall<object, object>,
  reply: grpc.sendUnaryData<object>,
): Promise<void> {
  const handler = handlers[name as keyof Services] as Unary | undefined;
  const cancel = signalOf(call);
  const called = startCall(context, name);
  try {
    if (handler === undefined) throw unimplemented(name);
    checkRequest(name, call.request);
    const response = await handler(context, call.request, { signal: cancel.signal });
    called("OK");
    reply(null, response);
  } catch (error) {
    called(codeOf(error));
    reply(statusOf(context, name, error));
  }
}

async function answerStream(
  context: Context,
  name: string,
  call: grpc.ServerWritableStream<object, object>,
): Promise<void> {
  const handler = handlers[name as keyof Services] as Stream | undefined;
  const cancel = signalOf(call);
  const called = startCall(context, name);
  try {
    if (handler === undefined) throw unimplemented(name);
    checkRequest(name, call.request);
    await handler(context, call.request, { signal: cancel.signal }, (message) =>
      send(call, message),
    );
    called("OK");
    call.end();
  } catch (error) {
    called(codeOf(error));
    call.emit("error", statusOf(context, name, error));
  }
}

/** What a kubelet asks all the time, and what is then no sign of work. */
const questions =
  /^(Version|Status|List.*|Stream.*|.*Status|.*Stats|RuntimeConfig|ImageFsInfo|GetContainerEvents)$/;

/** Counts a call; what it returns is to be told the gRPC code that the call ended with. */
function startCall({ calls, instruments }: Context, name: string): (code: string) => void {
  const beginMs = performance.now();
  const work = questions.test(name) ? 0 : 1;
  calls.count += work;
  calls.running += work;
  return (code) => {
    calls.running -= work;
    instruments.called(name, code, performance.now() - beginMs);
  };
}

/** A slow reader is waited for, so that nothing piles up here. */
function send(call: grpc.ServerWritableStream<object, object>, message: object): Promise<void> {
  if (call.write(message)) return Promise.resolve();
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

/** Aborts when the client cancels, goes away, or its deadline passes. */
function signalOf(
  call: grpc.ServerUnaryCall<object, object> | grpc.ServerWritableStream<object, object>,
): AbortController {
  const cancel = new AbortController();
  call.on("cancelled", () => {
    const deadline = Number(call.getDeadline());
    const late = Number.isFinite(deadline) && Date.now() >= deadline - 1;
    cancel.abort(
      late
        ? new DOMException("the client's deadline has passed", "TimeoutError")
        : new DOMException("the client has cancelled the call", "AbortError"),
    );
  });
  return cancel;
}

function unimplemented(name: string): CriError {
  const why = "no OCI runtime checkpoints or restores a pod as a whole";
  return new CriError("UNIMPLEMENTED", `isulad-ts has no ${name}: ${why}`);
}

/** It travels in a header: a long one would end the connection, with everybody's calls on it. */
const detailsMax = 8_192;

/** Keeps beginning and end: who says it, and why. */
function shortened(text: string): string {
  if (text.length <= detailsMax) return text;
  const half = detailsMax / 2;
  return `${text.slice(0, half)} […] ${text.slice(-half)}`;
}

function statusOf(context: Context, name: string, error: unknown): grpc.ServiceError {
  const code = codeOf(error);
  const details = shortened(messageOf(error));
  if (code === "INTERNAL") {
    const stack = error instanceof Error ? error.stack : undefined;
    context.log.error("call failed", { call: name, code, error: details, stack });
  } else {
    context.log.debug("call refused", { call: name, code, error: details });
  }
  return Object.assign(new Error(details), {
    code: grpcCodes[code],
    details,
    metadata: new grpc.Metadata(),
  });
}
