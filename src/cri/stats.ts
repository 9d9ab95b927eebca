// The stats of containers and pods. Only what runs has some: a container that has ended, and a pod that
// is not ready, are left out of lists.
import { CriError } from "../base/errors.ts";
import { nowNs } from "../base/clock.ts";
import { toLong } from "../base/int64.ts";
import type { DiskUsage } from "../stats/disk_usage.ts";
import { type PodNetwork, readNetworks, type InterfaceUsage } from "../stats/network_stats.ts";
import type { Cgroup, Sample } from "../stats/sampler.ts";
import { writableLayer } from "../layer/rootfs.ts";
import { runtime } from "../proto/messages.js";
import type {
  ContainerStatsRequest,
  ListContainerStatsRequest,
  ListPodSandboxStatsRequest,
  PodSandboxStatsRequest,
  StreamContainerStatsRequest,
  StreamPodSandboxStatsRequest,
} from "../proto/types.ts";
import type { Container } from "../state/container.ts";
import type { Sandbox } from "../state/sandbox.ts";
import type { Call, Context } from "./context.ts";
import { containerCgroup } from "./facts.ts";
import { selectContainers, selectSandboxes } from "./filter.ts";
import { Encoded, encoded, framed, itemsField, recordItems, sendItems } from "./lists.ts";
import { unready } from "./sandbox.ts";
import { cgroupStats, networkUsage, containerOnlyStats, value } from "../stats/stats_messages.ts";

const { ContainerAttributes, ContainerStats, LinuxPodSandboxStats, PodSandboxAttributes } =
  runtime.v1;

/** Numbers of fields (cri.proto) whose bytes are put together here. */
const linuxField = 2; // of PodSandboxStats
const containersField = 5; // of LinuxPodSandboxStats

/** @throws CriError NOT_FOUND, or FAILED_PRECONDITION when it does not run. */
export async function containerStats(
  context: Context,
  request: ContainerStatsRequest,
): Promise<Encoded> {
  const container = context.containers.get(request.container_id ?? "");
  const items = isRunning(container) ? await containerItems(context, [container]) : [];
  if (items.length > 0) return new Encoded(items);
  const { phase } = context.containers.get(container.id).phase;
  throw new CriError(
    "FAILED_PRECONDITION",
    `container ${container.id} is ${phase}: only what runs has stats`,
  );
}

export async function listContainerStats(
  context: Context,
  request: ListContainerStatsRequest,
): Promise<Encoded> {
  const containers = selectContainers(context, request.filter).filter(isRunning);
  return new Encoded(await containerItems(context, containers));
}

export async function streamContainerStats(
  context: Context,
  request: StreamContainerStatsRequest,
  call: Call,
  send: (batch: Encoded) => Promise<void>,
): Promise<void> {
  const containers = selectContainers(context, request.filter).filter(isRunning);
  await sendItems(await containerItems(context, containers), call, send);
}

/** @throws CriError NOT_FOUND, or FAILED_PRECONDITION when it is not ready. */
export async function podSandboxStats(
  context: Context,
  request: PodSandboxStatsRequest,
): Promise<Encoded> {
  const sandbox = context.sandboxes.get(request.pod_sandbox_id ?? "");
  if (isReady(sandbox)) return new Encoded(await podItems(context, [sandbox]));
  throw unready(sandbox);
}

export async function listPodSandboxStats(
  context: Context,
  request: ListPodSandboxStatsRequest,
): Promise<Encoded> {
  const sandboxes = selectSandboxes(context, request.filter).filter(isReady);
  return new Encoded(await podItems(context, sandboxes));
}

export async function streamPodSandboxStats(
  context: Context,
  request: StreamPodSandboxStatsRequest,
  call: Call,
  send: (batch: Encoded) => Promise<void>,
): Promise<void> {
  const sandboxes = selectSandboxes(context, request.filter).filter(isReady);
  await sendItems(await podItems(context, sandboxes), call, send);
}

export function isRunning({ phase }: Container): boolean {
  return phase.phase === "running";
}

export function isReady({ phase }: Sandbox): boolean {
  return phase.phase === "ready";
}

/** What the sampler reads while somebody asks. */
export function knownCgroups(context: Context): Cgroup[] {
  return [
    ...cgroupsOf(context, context.containers.list().filter(isRunning)),
    ...context.sandboxes
      .list()
      .filter(isReady)
      .map((sandbox) => podCgroup(context, sandbox)),
  ];
}

const cgroups = new WeakMap<Container, Cgroup>();

/** Of containers whose pod is there. */
export function cgroupsOf(context: Context, containers: Container[]): Cgroup[] {
  return containers.flatMap((container) => {
    const known = cgroups.get(container);
    if (known !== undefined) return [known];
    const { id, sandboxId } = container;
    if (context.sandboxes.find(sandboxId) === undefined) return [];
    const cgroup = { id, paths: containerCgroup(context, container) };
    cgroups.set(container, cgroup);
    return [cgroup];
  });
}

export function podCgroup(context: Context, { id, cgroup }: Sandbox): Cgroup {
  return { id, paths: context.cgroup.podCgroup(cgroup.parent, id).paths, processes: true };
}

async function containerItems(context: Context, containers: Container[]): Promise<Uint8Array[]> {
  const bodies = await containerBodies(context, containers);
  return [...bodies.values()].map((body) => framed(itemsField, body));
}

/** ContainerStats in bytes, by id; one that has ended meanwhile is left out. */
async function containerBodies(
  context: Context,
  containers: Container[],
): Promise<Map<string, Uint8Array>> {
  const samples = await context.sampler.sample(cgroupsOf(context, containers));
  const layers = await layersOf(context, containers);
  const bodies = new Map<string, Uint8Array>();
  for (const container of containers) {
    const sample = samples.get(container.id);
    if (sample === undefined) continue;
    bodies.set(
      container.id,
      bodyOf(context, { container, sample, layer: layers.get(container.id) }),
    );
  }
  return bodies;
}

/** What each container has written into its own layer, by id. */
export async function layersOf(
  context: Context,
  containers: Container[],
): Promise<Map<string, DiskUsage>> {
  const folderOf = ({ id }: Container) => writableLayer(context.containers.folderOf(id));
  const usages = await context.layers.of(containers.map(folderOf));
  return new Map(
    containers.flatMap((container) => {
      const usage = usages.get(folderOf(container));
      return usage === undefined ? [] : [[container.id, usage] as const];
    }),
  );
}

type Parts = { container: Container; sample: Sample; layer: DiskUsage | undefined };
type Body = Omit<Parts, "sample"> & { bytes: Uint8Array };
/** By what they were made of: any number of calls between two readings share them. */
const bodyOfSample = new WeakMap<Sample, Body>();

function bodyOf(context: Context, { container, sample, layer }: Parts): Uint8Array {
  const known = bodyOfSample.get(sample);
  if (known?.container === container && known.layer === layer) return known.bytes;
  const stats = {
    ...cgroupStats(sample),
    ...containerOnlyStats(sample, layer, context.config.graph),
  };
  const parts = [containerAttributes(container), encoded(ContainerStats, stats)];
  const bytes = new Uint8Array(Buffer.concat(parts));
  bodyOfSample.set(sample, { container, layer, bytes });
  return bytes;
}

// The attributes are field 1 too.
const containerAttributes = recordItems(ContainerAttributes, ({ id, config }: Container) => {
  const { metadata, labels, annotations } = config;
  return { id, metadata, labels: labels ?? {}, annotations: annotations ?? {} };
});
const podAttributes = recordItems(PodSandboxAttributes, ({ id, config }: Sandbox) => {
  const { metadata, labels, annotations } = config;
  return { id, metadata, labels: labels ?? {}, annotations: annotations ?? {} };
});

async function podItems(context: Context, sandboxes: Sandbox[]): Promise<Uint8Array[]> {
  const byPod = runningByPod(context, sandboxes);
  const bodies = await containerBodies(context, [...byPod.values()].flat());
  const samples = await context.sampler.sample(sandboxes.map((one) => podCgroup(context, one)));
  const networks = await networksOf(context, sandboxes, byPod);
  return sandboxes.map((sandbox) => {
    const own = podStats(samples.get(sandbox.id), networks.get(sandbox.id));
    const containers = byPod.get(sandbox.id)!.flatMap(({ id }) => bodies.get(id) ?? []);
    const inner = containers.map((body) => framed(containersField, body));
    const linux = framed(linuxField, encoded(LinuxPodSandboxStats, own), ...inner);
    return framed(itemsField, podAttributes(sandbox), linux);
  });
}

/** The running containers of each pod. */
export function runningByPod(context: Context, sandboxes: Sandbox[]): Map<string, Container[]> {
  const byPod = new Map<string, Container[]>(sandboxes.map(({ id }) => [id, []]));
  for (const container of context.containers.list()) {
    if (isRunning(container)) byPod.get(container.sandboxId)?.push(container);
  }
  return byPod;
}

function podStats(
  sample: Sample | undefined,
  network: InterfaceUsage[] | undefined,
): runtime.v1.LinuxPodSandboxStats.$Properties {
  const count = sample?.processes;
  return {
    ...(sample === undefined ? {} : cgroupStats(sample)),
    network: network === undefined ? undefined : networkUsage(nowNs(), network),
    process:
      count === undefined
        ? undefined
        : { timestamp: toLong(sample!.atNs), process_count: value(count) },
  };
}

/** Of pods with a network of their own. */
export function networksOf(
  context: Context,
  sandboxes: Sandbox[],
  byPod: Map<string, Container[]>,
): Promise<Map<string, InterfaceUsage[]>> {
  const pods = sandboxes.flatMap(({ id, namespaces, pause }): PodNetwork[] => {
    if (namespaces.net === undefined) return [];
    const pids = (byPod.get(id) ?? []).map(({ phase }) =>
      phase.phase === "running" ? phase.pid : 0,
    );
    const { path, inode } = namespaces.net;
    return [{ id, path, inode: BigInt(inode), pids: [...pids, pause?.pid ?? 0].filter(Boolean) }];
  });
  return readNetworks(pods, (problem) =>
    context.log.warn("the network of pods without a process was not read", { problem }),
  );
}
