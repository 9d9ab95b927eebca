// Answers the part of containerd's API that cAdvisor calls, so that a kubelet's /metrics/cadvisor names pods
// and containers (key containerd-socket), and the list by which agents find a pod's containers. Read-only; cAdvisor
// (container/containerd, v0.56) asks once for each cgroup whose name holds an id of 64 hexadecimal digits.
import { setTimeout as sleep } from "node:timers/promises";
import { throwIfAborted, untilAborted } from "../base/abort.ts";
import { version } from "../base/build.ts";
import { CriError } from "../base/errors.ts";
import { toLong } from "../base/int64.ts";
import { containerd } from "../proto/messages.js";
import type * as api from "../proto/containerd_types.ts";
import { Slices } from "../base/time_slices.ts";
import type { Container, ContainerPhase } from "../state/container.ts";
import type { Sandbox } from "../state/sandbox.ts";
import { readTextIfExists } from "../sys/file.ts";
import { specFile } from "./bundle.ts";
import { containerdFilter, type FilteredContainer } from "./containerd_filters.ts";
import type { Call, Context } from "./context.ts";
import { runtimeVersion } from "./runtime.ts";

const { Status } = containerd;
const specUrl = "types.containerd.io/opencontainers/runtime-spec/1/Spec";
/** Interval of the checks whether a pod is made. */
const pollMs = 20;
/** Marks the container that stands for a pod, to which cAdvisor counts the pod's network. */
const kindLabel = "io.cri-containerd.kind";

export function containerdVersion({ config }: Context): api.VersionResponse {
  const named = config.runtimeName === "containerd" ? runtimeVersion(config) : version;
  return { version: named, revision: "isulad-ts" };
}

/** Returns a container, or a pod as its sandbox. @throws CriError NOT_FOUND. */
export async function getContainer(
  context: Context,
  request: api.GetContainerRequest,
  call: Call,
): Promise<api.GetContainerResponse> {
  const id = request.id ?? "";
  await untilMade(context, id, call);
  const container = context.containers.listed(id) ?? context.sandboxes.listed(id);
  if (container === undefined) throw notFound(id);
  return { container: await withSpec(context, described(context, container)) };
}

/**
 * Returns the containers and pods that pass one of the filters, or all without a filter.
 * @throws CriError INVALID_ARGUMENT for a filter that cannot be parsed.
 */
export async function listAllContainers(
  context: Context,
  request: api.ListContainersRequest,
): Promise<api.ListContainersResponse> {
  const passes = containerdFilter(request.filters ?? []);
  const all = [...context.sandboxes.list(), ...context.containers.list()];
  const found = all.map((one) => described(context, one)).filter(passes);
  const slices = new Slices();
  const containers: api.Container[] = [];
  for (const one of found) {
    containers.push(await withSpec(context, one));
    await slices.pause();
  }
  return { containers };
}

function described({ config }: Context, one: Container | Sandbox): FilteredContainer {
  const isContainer = "image" in one;
  const labels = { ...one.config.labels, [kindLabel]: isContainer ? "container" : "sandbox" };
  return { id: one.id, labels, image: isContainer ? one.image.name : config.podSandboxImage };
}

async function withSpec(context: Context, one: FilteredContainer): Promise<api.Container> {
  const value = Buffer.from(await specText(context, one.id));
  return { ...one, spec: { type_url: specUrl, value } };
}

/** Waits for a pod that is being made: its pause container's cgroup exists before the pod is listed. */
async function untilMade({ sandboxes }: Context, id: string, call: Call): Promise<void> {
  while (sandboxes.listed(id) === undefined && sandboxes.knows(id)) {
    throwIfAborted(`the start of sandbox ${id}`, call.signal);
    await sleep(pollMs);
  }
}

/** The built-in sandbox has no spec; cAdvisor reads process.env from every one. */
async function specText(context: Context, id: string): Promise<string> {
  return (await readTextIfExists(specFile(context, id))) ?? '{"process":{}}';
}

/**
 * Returns a container's first process; of a pod, a process in its network namespace. Waits for a start under
 * way: cAdvisor asks as soon as the cgroup exists, and hardly asks again.
 * @throws CriError NOT_FOUND for a container that was not started, or a pod without a process.
 */
export async function getTask(
  context: Context,
  request: api.GetRequest,
  call: Call,
): Promise<api.GetResponse> {
  const id = request.container_id ?? "";
  await untilMade(context, id, call);
  const starting = context.starting.get(id);
  if (starting !== undefined) await untilAborted(starting, `the start of ${id}`, call.signal);
  const container = context.containers.listed(id);
  const task = container === undefined ? podTask(context, id) : taskOf(container.phase);
  if (task === undefined || request.exec_id) throw notFound(id);
  return { process: { container_id: id, id, ...task } };
}

function podTask({ podMarkers }: Context, id: string): api.Process | undefined {
  const pid = podMarkers?.processOf(id);
  return pid === undefined ? undefined : { pid, status: Status.RUNNING };
}

function taskOf(phase: ContainerPhase): api.Process | undefined {
  switch (phase.phase) {
    case "creating":
    case "created":
      return undefined;
    case "running":
      return { pid: phase.pid, status: Status.RUNNING };
    case "exited":
      return {
        status: Status.STOPPED,
        exit_status: phase.exitCode,
        exited_at: timestamp(BigInt(phase.finishedAtNs)),
      };
  }
}

function timestamp(ns: bigint): api.Timestamp {
  return { seconds: toLong(ns / 1_000_000_000n), nanos: Number(ns % 1_000_000_000n) };
}

function notFound(id: string): CriError {
  return new CriError("NOT_FOUND", `container ${id || '""'}: not found, or not started`);
}
