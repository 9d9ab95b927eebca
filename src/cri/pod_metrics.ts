// ListMetricDescriptors and ListPodSandboxMetrics, which a kubelet without cAdvisor serves as its own.
import { throwIfAborted } from "../base/abort.ts";
import { nowNs } from "../base/clock.ts";
import { Slices } from "../base/time_slices.ts";
import { processes } from "../node/cgroup.ts";
import { readDetails } from "../stats/cgroup_details.ts";
import { diskName, diskSpace } from "../stats/disks.ts";
import { countOpenFiles } from "../stats/open_files.ts";
import { softLimit } from "../sys/process.ts";
import type { Cgroup } from "../stats/sampler.ts";
import { runtime } from "../proto/messages.js";
import type * as cri from "../proto/types.ts";
import type { Container } from "../state/container.ts";
import { isInGuest, type Sandbox } from "../state/sandbox.ts";
import type { Call, Context } from "./context.ts";
import { listCalls, listItem } from "./encoded_lists.ts";
import { metricDescriptors, metricMessages } from "../stats/metric_messages.ts";
import type { MetricSources } from "../stats/metric_table.ts";
import {
  cgroupsOf,
  isReady,
  networkUsageOf,
  podCgroup,
  runningByPod,
  writableLayerUsage,
} from "./usage.ts";

type Measurements = Omit<MetricSources, "diskName">;

export function listMetricDescriptors(): cri.ListMetricDescriptorsResponse {
  return { descriptors: metricDescriptors() };
}

export const { list: listPodSandboxMetrics, stream: streamPodSandboxMetrics } = listCalls(podItems);

/** Covers ready pods and their running containers. */
async function podItems(context: Context, _request: object, call: Call): Promise<Uint8Array[]> {
  const sandboxes = context.sandboxes.list().filter(isReady);
  const byPod = runningByPod(context, sandboxes);
  const containers = [...byPod.values()].flat();
  const ofContainers = await containerMeasurements(context, containers, call);
  const ofPods = await podMeasurements(context, sandboxes, byPod);
  const diskName = diskNames();
  return sandboxes.map((sandbox) => {
    const { id } = sandbox;
    const message: cri.PodSandboxMetrics = {
      pod_sandbox_id: id,
      metrics: metricMessages(
        { ...ofPods.get(id)!, diskName },
        podLabels(sandbox, { container: "", id, image: "" }),
      ),
      container_metrics: byPod.get(id)!.flatMap((container): cri.ContainerMetrics[] => {
        const sources = ofContainers.get(container.id);
        if (sources === undefined) return [];
        const own = { container: container.config.metadata?.name ?? "", id: container.id };
        const labels = podLabels(sandbox, { ...own, image: container.image.name });
        return [
          { container_id: container.id, metrics: metricMessages({ ...sources, diskName }, labels) },
        ];
      }),
    };
    return listItem(runtime.v1.PodSandboxMetrics, message);
  });
}

/** Names each disk once: many metrics of many containers have the same disks. */
function diskNames(): MetricSources["diskName"] {
  const names = new Map<string, string>();
  return (major, minor) => {
    const numbers = `${major}:${minor}`;
    const name = names.get(numbers) ?? diskName(major, minor);
    names.set(numbers, name);
    return name;
  };
}

function podLabels(
  { config }: Sandbox,
  own: { container: string; id: string; image: string },
): string[] {
  const { name, namespace } = config.metadata ?? {};
  return [name ?? "", namespace ?? "", own.container, own.id, own.id, own.image];
}

async function podMeasurements(
  context: Context,
  sandboxes: Sandbox[],
  byPod: Map<string, Container[]>,
): Promise<Map<string, Measurements>> {
  const cgroups = sandboxes.map((sandbox) => podCgroup(context, sandbox));
  const samples = await context.sampler.sample(cgroups);
  const networks = await networkUsageOf(context, sandboxes, byPod);
  const sourcesOf = ({ id }: Sandbox): Measurements => {
    return { nowNs: nowNs(), sample: samples.get(id), interfaces: networks.get(id) };
  };
  return new Map(sandboxes.map((sandbox) => [sandbox.id, sourcesOf(sandbox)]));
}

/** By id; omits containers that have exited meanwhile. */
async function containerMeasurements(
  context: Context,
  containers: Container[],
  call: Call,
): Promise<Map<string, Measurements>> {
  const cgroups = cgroupsOf(context, containers);
  const samples = await context.sampler.sample(cgroups);
  const layers = await writableLayerUsage(context, containers);
  const space = await diskSpace(context.config.graph);
  const paths = new Map(cgroups.map((cgroup) => [cgroup.id, cgroup.paths]));
  const slices = new Slices();
  const sources = new Map<string, Measurements>();
  for (const container of containers) {
    const { id, phase } = container;
    const sample = samples.get(id);
    throwIfAborted("reading metrics", call.signal);
    if (sample === undefined || phase.phase !== "running") continue;
    const startedAtNs = BigInt(phase.startedAtNs);
    const own = isInGuest(container)
      ? { processes: sample.processes }
      : await processMeasurements(paths.get(id)!, phase.pid);
    const counted = { ...sample, processes: own.processes };
    const layer = layers.get(id);
    sources.set(id, {
      nowNs: nowNs(),
      startedAtNs,
      layer,
      space,
      ...own,
      sample: counted,
    });
    await slices.pause();
  }
  return sources;
}

async function processMeasurements(paths: Cgroup["paths"], pid: number) {
  const pids = processes(paths);
  return {
    details: readDetails(paths),
    processes: BigInt(pids.length),
    openFiles: await countOpenFiles(pids),
    openFilesMax: softLimit(pid, "open files"),
  };
}
