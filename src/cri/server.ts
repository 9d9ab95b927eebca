// The gRPC servers: registers every RPC of CRI, of isulad.v1 and of containerd's API; grpc_calls.ts runs their calls.
import * as grpc from "@grpc/grpc-js";
import {
  ContainersService,
  Health,
  ImageService,
  NodeService,
  RuntimeService,
  TasksService,
  VersionService,
} from "../proto/services.ts";
import { answerStream, answerUnary, type Method } from "./grpc_calls.ts";
import type { Call, Context } from "./context.ts";
import * as container from "./container.ts";
import { containerdVersion, getContainer, getTask, listAllContainers } from "./containerd_api.ts";
import { createContainer } from "./container_create.ts";
import { startContainer } from "./container_start.ts";
import { getContainerEvents } from "./events.ts";
import { execSync } from "./exec_sync.ts";
import { FailureLog } from "./failure_log.ts";
import { containerStatus, listContainers, streamContainers } from "./container_status.ts";
import { updateContainerResources } from "./container_update.ts";
import { healthCheck, healthWatch } from "./health_service.ts";
import * as image from "./image.ts";
import type { Encoded } from "./encoded_lists.ts";
import * as metrics from "./pod_metrics.ts";
import * as nodeImages from "./node_images.ts";
import { listNriChanges, nriPlugins } from "./nri_plugins.ts";
import { runtimeConfig, status, updateRuntimeConfig, versionOf } from "./runtime.ts";
import { listPodSandbox, podSandboxStatus, streamPodSandboxes } from "./sandbox_status.ts";
import { abandonNetwork, removePodSandbox, stopPodSandbox } from "./sandbox_stop.ts";
import { runPodSandbox } from "./sandbox_run.ts";
import { updatePodSandboxResources } from "./sandbox_update.ts";
import type { SlicedResponse } from "../base/sliced_response.ts";
import * as stats from "./stats.ts";
import * as stream from "./stream.ts";

type Methods = Record<string, Method>;
type Services = typeof RuntimeService & typeof ImageService & typeof NodeService;
type Request<Name extends keyof Services> = ReturnType<Services[Name]["request"]["decode"]>;
type Response<Name extends keyof Services> = Parameters<Services[Name]["response"]["encode"]>[0];
type Answer<Name extends keyof Services> = Response<Name> | Encoded | SlicedResponse;
type Args<Name extends keyof Services> = [context: Context, request: Request<Name>, call: Call];

/** CheckpointPod and RestorePod have no handler and return UNIMPLEMENTED. */
type Handlers = {
  [Name in keyof Services]?: Services[Name]["stream"] extends true
    ? (...args: [...Args<Name>, send: (message: Answer<Name>) => Promise<void>]) => Promise<void>
    : (...args: Args<Name>) => Answer<Name> | Promise<Answer<Name>>;
};

const handlers: Handlers = {
  Version: versionOf,
  Status: status,
  RuntimeConfig: runtimeConfig,
  UpdateRuntimeConfig: updateRuntimeConfig,
  RunPodSandbox: runPodSandbox,
  StopPodSandbox: stopPodSandbox,
  RemovePodSandbox: removePodSandbox,
  UpdatePodSandboxResources: updatePodSandboxResources,
  PodSandboxStatus: podSandboxStatus,
  ListPodSandbox: listPodSandbox,
  StreamPodSandboxes: streamPodSandboxes,
  CreateContainer: createContainer,
  StartContainer: startContainer,
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
  ExecSync: execSync,
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
  AbandonNetwork: abandonNetwork,
  NriPlugins: nriPlugins,
  ListTimelines: async (context, request) =>
    (await import("../history/pod_timelines.ts")).listTimelines(context, request),
  ListNriChanges: listNriChanges,
  Reload: (context) => context.reload(),
  Dump: async ({ debug }) => ({ json: await debug.dump() }),
  Profile: async ({ debug }, { seconds }, { signal }) => ({
    json: await debug.profile(seconds, signal),
  }),
};

/** RPCs of runtime.v1alpha2 (cri-api 0.25), for kubelets 1.20 to 1.25; the messages are those of v1. */
const alphaRuntime = `
  Version RunPodSandbox StopPodSandbox RemovePodSandbox PodSandboxStatus ListPodSandbox
  CreateContainer StartContainer StopContainer RemoveContainer ListContainers ContainerStatus
  UpdateContainerResources ReopenContainerLog ExecSync Exec Attach PortForward ContainerStats
  ListContainerStats PodSandboxStats ListPodSandboxStats UpdateRuntimeConfig Status`
  .trim()
  .split(/\s+/);
const alphaImage = ["ListImages", "ImageStatus", "PullImage", "RemoveImage", "ImageFsInfo"];

/**
 * A client that cancels a call resets its stream. By default node closes a connection, with all its calls,
 * after 1,000 resets and then 33 a second; a kubelet has only one. As only root and its group can connect,
 * the limits merely have to stop a client that does nothing else.
 */
const http2Options = { streamResetBurst: 100_000, streamResetRate: 10_000 };

export function createServer(context: Context): grpc.Server {
  const { server, add } = newServer(context);
  addCri(add);
  add("isulad.v1.NodeService", NodeService, handlers);
  add("grpc.health.v1.Health", Health, { Check: healthCheck, Watch: healthWatch });
  add("runtime.v1alpha2.RuntimeService", pick(RuntimeService, alphaRuntime), handlers);
  add("runtime.v1alpha2.ImageService", pick(ImageService, alphaImage), handlers);
  return server;
}

/**
 * The server of containerd-socket: containerd's API as far as cAdvisor calls it, and CRI, since kubeadm takes
 * containerd's default path for a CRI socket. Calls wait until the daemon is ready, except Version, without
 * which a kubelet does not start.
 */
export function createContainerdServer(context: Context, ready: Promise<void>): grpc.Server {
  const { server, add } = newServer(context);
  addCri(add, ready);
  const version = { Version: containerdVersion };
  add("containerd.services.version.v1.Version", VersionService, version);
  const containers = { Get: getContainer, List: listAllContainers };
  add("containerd.services.containers.v1.Containers", ContainersService, containers, ready);
  add("containerd.services.tasks.v1.Tasks", TasksService, { Get: getTask }, ready);
  return server;
}

type Add = (service: string, methods: Methods, handlers: object, ready?: Promise<void>) => void;

function addCri(add: Add, ready?: Promise<void>): void {
  add("runtime.v1.RuntimeService", RuntimeService, handlers, ready);
  add("runtime.v1.ImageService", ImageService, handlers, ready);
}

function newServer(context: Context): { server: grpc.Server; add: Add } {
  // Channelz stays on, though nobody reads it: forceShutdown() ends only the sessions that it knows.
  const server = new grpc.Server({
    "grpc.max_receive_message_length": context.config.maxRecvBytes,
    "grpc.max_send_message_length": -1,
  });
  // grpc-js has no public option for these, and passes this object to node:http2.
  Object.assign(server["commonServerOptions"] as object, http2Options);
  const failures = new FailureLog(context.log);
  const add: Add = (service, methods, table, ready) =>
    register(server, { context, failures, service, methods, table, ready });
  return { server, add };
}

function pick(methods: Methods, names: string[]): Methods {
  return Object.fromEntries(names.map((name) => [name, methods[name]!]));
}

type Service = {
  context: Context;
  failures: FailureLog;
  service: string;
  methods: Methods;
  /** Handlers by method. */
  table: object;
  ready: Promise<void> | undefined;
};

/** grpc-js only passes bytes through: what fails to be encoded or decoded fails only its own call. */
function register(server: grpc.Server, { service, methods, table, ...rest }: Service): void {
  const definition: Record<string, grpc.MethodDefinition<Buffer, Buffer>> = {};
  const implementation: grpc.UntypedServiceImplementation = {};
  const same = (bytes: Buffer) => bytes;
  for (const [name, method] of Object.entries(methods)) {
    definition[name] = {
      path: `/${service}/${name}`,
      requestStream: false,
      responseStream: method.stream,
      requestSerialize: same,
      requestDeserialize: same,
      responseSerialize: same,
      responseDeserialize: same,
    };
    const handler = table[name as keyof typeof table];
    const rpc = { ...rest, name: nameOf(service, name), method, handler };
    implementation[name] = method.stream ? answerStream(rpc) : answerUnary(rpc);
  }
  server.addService(definition, implementation);
}

/** Names an RPC in logs and metrics. CRI's names are unique; containerd has a Get for each kind of object. */
function nameOf(service: string, method: string): string {
  if (service === "grpc.health.v1.Health") return `health.${method}`;
  return service.startsWith("containerd.")
    ? `containerd.${service.split(".")[2]}.${method}`
    : method;
}
