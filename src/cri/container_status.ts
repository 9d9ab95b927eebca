// ContainerStatus and ListContainers: converts container records to CRI messages.
import { toLong } from "../base/int64.ts";
import { jsonText } from "../base/json.ts";
import { Slices } from "../base/time_slices.ts";
import { runtime } from "../proto/messages.js";
import type * as cri from "../proto/types.ts";
import type { Container, ContainerPhase } from "../state/container.ts";
import { goJson } from "../state/message_json.ts";
import { signalNumber } from "../sys/signals.ts";
import { specFile, specIfReadable } from "./bundle.ts";
import type { Context } from "./context.ts";
import { runtimeType } from "./handler_info.ts";
import { selectContainers } from "./list_filters.ts";
import { listCalls, recordItems } from "./encoded_lists.ts";

const { ContainerState, Signal } = runtime.v1;

export async function containerStatus(
  context: Context,
  request: cri.ContainerStatusRequest,
): Promise<cri.ContainerStatusResponse> {
  const container = context.containers.get(request.container_id ?? "");
  return {
    status: containerStatusMessage(container),
    info: request.verbose === true ? { info: await infoOf(context, container) } : {},
  };
}

export const { list: listContainers, stream: streamContainers } = listCalls(
  (context, { filter }: cri.ListContainersRequest) =>
    selectContainers(context, filter)
      .filter(({ phase }) => !filter?.state || stateOf(phase) === (filter.state.state ?? 0))
      .map((container) => itemOf(container)),
);

const itemOf = recordItems(runtime.v1.Container, containerMessage);

export function containerMessage(container: Container): cri.Container {
  const { id, sandboxId, config, image, createdAtNs, phase } = container;
  return {
    id,
    pod_sandbox_id: sandboxId,
    metadata: config.metadata,
    // image.image as requested, usually an id: it tells `crictl rmi --prune` which image is used. A tag may have moved.
    // Without a handler, as in ListImages: all handlers share an image.
    image: { ...config.image, user_specified_image: image.name, runtime_handler: "" },
    image_ref: image.id,
    image_id: image.id,
    state: stateOf(phase),
    created_at: toLong(BigInt(createdAtNs)),
    labels: config.labels ?? {},
    annotations: config.annotations ?? {},
  };
}

export function containerStatusMessage(container: Container): cri.ContainerStatus {
  const { id, config, image, createdAtNs, phase, user, logPath } = container;
  const [uid, gid] = [toLong(user.uid), toLong(user.gid)];
  return {
    id,
    metadata: config.metadata,
    ...times(phase),
    state: stateOf(phase),
    created_at: toLong(BigInt(createdAtNs)),
    image: { ...config.image, image: image.name },
    image_ref: image.ref,
    image_id: image.id,
    labels: config.labels ?? {},
    annotations: config.annotations ?? {},
    mounts: config.mounts ?? [],
    log_path: logPath,
    resources: { linux: config.linux?.resources },
    user: { linux: { uid, gid, supplemental_groups: user.groups.map((group) => toLong(group)) } },
    stop_signal: signalOf(container.stopSignal),
  };
}

function times(phase: ContainerPhase): cri.ContainerStatus {
  switch (phase.phase) {
    case "creating":
    case "created":
      return {};
    case "running":
      return { started_at: toLong(BigInt(phase.startedAtNs)) };
    case "exited":
      return {
        started_at: toLong(BigInt(phase.startedAtNs)),
        finished_at: toLong(BigInt(phase.finishedAtNs)),
        exit_code: phase.exitCode,
        reason: phase.reason,
        message: phase.message,
      };
  }
}

function stateOf(phase: ContainerPhase): runtime.v1.ContainerState {
  switch (phase.phase) {
    case "creating":
    case "created":
      return ContainerState.CONTAINER_CREATED;
    case "running":
      return ContainerState.CONTAINER_RUNNING;
    case "exited":
      return ContainerState.CONTAINER_EXITED;
  }
}

/** CRI's signals by number; the first of two names wins (SIGCHLD over SIGCLD). */
const signals = new Map<number, runtime.v1.Signal>();
const signalNames = Signal as unknown as Record<string, runtime.v1.Signal | undefined>;
for (const [name, signal = Signal.SIGNAL_RUNTIME_DEFAULT] of Object.entries(signalNames)) {
  if (signal === Signal.SIGNAL_RUNTIME_DEFAULT) continue;
  const number = signalNumber(name.replace("SIGNAL_", ""));
  if (!signals.has(number)) signals.set(number, signal);
}

/** CRI's signal of the same name, else of the same number, as an image may say "15". */
function signalOf(name: string): runtime.v1.Signal {
  return (
    signalNames[`SIGNAL_${name}`] ??
    signals.get(signalNumber(name)) ??
    Signal.SIGNAL_RUNTIME_DEFAULT
  );
}

async function infoOf(context: Context, container: Container): Promise<string> {
  const { sandboxId, phase, runtimeHandler, stopSignal, selinux } = container;
  const runtimeSpec = (await specIfReadable(specFile(context, container.id))) ?? null;
  const slices = new Slices();
  const config = configInfo(container.config);
  await slices.pause();
  return jsonText({
    sandboxID: sandboxId,
    // Absent unless it runs: a script that kills pid 0 would kill its own process group.
    pid: phase.phase === "running" ? phase.pid : undefined,
    phase,
    runtimeHandler,
    runtimeType: runtimeType(context, container),
    stopSignal,
    selinux: selinux ?? null,
    config,
    runtimeSpec,
  });
}

/** Environment values are text here, as in containerd's info, not base64. */
function configInfo(config: cri.ContainerConfig): object {
  const { envs, ...rest } = config;
  const json = goJson(runtime.v1.ContainerConfig, rest);
  if (!envs) return json;
  const text = new TextDecoder("utf-8", { ignoreBOM: true });
  const decoded = envs.map(({ key, value }) => ({
    key,
    value: text.decode(value ?? new Uint8Array()),
  }));
  return { ...json, envs: decoded };
}
