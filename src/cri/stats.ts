// ContainerStats, PodSandboxStats and their lists, which include only running containers and ready pods.
import { CriError } from "../base/errors.ts";
import { nowNs } from "../base/clock.ts";
import { toLong } from "../base/int64.ts";
import type { DiskUsage } from "../stats/disk_usage.ts";
import type { InterfaceUsage } from "../stats/network_stats.ts";
import type { Sample } from "../stats/sampler.ts";
import { runtime } from "../proto/messages.js";
import type * as cri from "../proto/types.ts";
import type { Container } from "../state/container.ts";
import type { Sandbox } from "../state/sandbox.ts";
import type { Context } from "./context.ts";
import { selectContainers, selectSandboxes } from "./list_filters.ts";
import { Encoded, encoded, framed, itemsField, listCalls, recordItems } from "./encoded_lists.ts";
import { requireReady } from "./preconditions.ts";
import { cgroupStats, networkUsage, containerOnlyStats, value } from "../stats/stats_messages.ts";
import {
  cgroupsOf,
  isReady,
  isRunning,
  networkUsageOf,
  podCgroup,
  runningByPod,
  writableLayerUsage,
} from "./usage.ts";

const { ContainerAttributes, ContainerStats, LinuxPodSandboxStats, PodSandboxAttributes } =
  runtime.v1;

/** Numbers of the fields (cri.proto) that are assembled from cached bytes. */
const linuxField = 2; // of PodSandboxStats
const containersField = 5; // of LinuxPodSandboxStats

/** @throws CriError NOT_FOUND, or FAILED_PRECONDITION if it is not running. */
export async function containerStats(
  context: Context,
  request: cri.ContainerStatsRequest,
): Promise<Encoded> {
  const container = context.containers.get(request.container_id ?? "");
  const items = isRunning(container) ? await containerItems(context, [container]) : [];
  if (items.length > 0) return new Encoded(items);
  const { phase } = context.containers.get(container.id).phase;
  throw new CriError(
    "FAILED_PRECONDITION",
    `container ${container.id} is ${phase}: only running containers have stats`,
  );
}

export const { list: listContainerStats, stream: streamContainerStats } = listCalls(
  (context, { filter }: cri.ListContainerStatsRequest) =>
    containerItems(context, selectContainers(context, filter).filter(isRunning)),
);

/** @throws CriError NOT_FOUND, or FAILED_PRECONDITION if it is not ready. */
export async function podSandboxStats(
  context: Context,
  request: cri.PodSandboxStatsRequest,
): Promise<Encoded> {
  const sandbox = requireReady(context.sandboxes.get(request.pod_sandbox_id ?? ""));
  return new Encoded(await podItems(context, [sandbox]));
}

export const { list: listPodSandboxStats, stream: streamPodSandboxStats } = listCalls(
  (context, { filter }: cri.ListPodSandboxStatsRequest) =>
    podItems(context, selectSandboxes(context, filter).filter(isReady)),
);

async function containerItems(context: Context, containers: Container[]): Promise<Uint8Array[]> {
  const bodies = await containerBodies(context, containers);
  return [...bodies.values()].map((body) => framed(itemsField, body));
}

/** Encoded ContainerStats by id; omits containers that have exited meanwhile. */
async function containerBodies(
  context: Context,
  containers: Container[],
): Promise<Map<string, Uint8Array>> {
  const samples = await context.sampler.sample(cgroupsOf(context, containers));
  const layers = await writableLayerUsage(context, containers);
  const bodies = new Map<string, Uint8Array>();
  for (const container of containers) {
    const { id } = container;
    const sample = samples.get(id);
    if (sample === undefined) continue;
    bodies.set(id, bodyOf(context, { container, sample, layer: layers.get(id) }));
  }
  return bodies;
}

type Parts = { container: Container; sample: Sample; layer: DiskUsage | undefined };
type Body = Omit<Parts, "sample"> & { bytes: Uint8Array };
/** Cached by sample: all calls between two readings share one encoding. */
const bodyOfSample = new WeakMap<Sample, Body>();

function bodyOf(context: Context, { container, sample, layer }: Parts): Uint8Array {
  const known = bodyOfSample.get(sample);
  if (known?.container === container && known.layer === layer) return known.bytes;
  const own = containerOnlyStats(sample, layer, context.config.graph);
  const stats = { ...cgroupStats(sample), ...own };
  const parts = [containerAttributes(container), encoded(ContainerStats, stats)];
  const bytes = new Uint8Array(Buffer.concat(parts));
  bodyOfSample.set(sample, { container, layer, bytes });
  return bytes;
}

// recordItems() writes field 1, and attributes are field 1 of the stats of pods and containers.
const containerAttributes = recordItems(ContainerAttributes, attributesOf);
const podAttributes = recordItems(PodSandboxAttributes, attributesOf);

function attributesOf({ id, config }: Container | Sandbox) {
  const { metadata, labels, annotations } = config;
  return { id, metadata, labels: labels ?? {}, annotations: annotations ?? {} };
}

async function podItems(context: Context, sandboxes: Sandbox[]): Promise<Uint8Array[]> {
  const byPod = runningByPod(context, sandboxes);
  const bodies = await containerBodies(context, [...byPod.values()].flat());
  const samples = await context.sampler.sample(sandboxes.map((one) => podCgroup(context, one)));
  const networks = await networkUsageOf(context, sandboxes, byPod);
  return sandboxes.map((sandbox) => {
    const own = podStats(samples.get(sandbox.id), networks.get(sandbox.id));
    const containers = byPod.get(sandbox.id)!.flatMap(({ id }) => bodies.get(id) ?? []);
    const inner = containers.map((body) => framed(containersField, body));
    const linux = framed(linuxField, encoded(LinuxPodSandboxStats, own), ...inner);
    return framed(itemsField, podAttributes(sandbox), linux);
  });
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
