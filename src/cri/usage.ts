// Reads the resource usage of running containers and ready pods, for stats, metrics and ImageFsInfo.
import { messageOf } from "../base/errors.ts";
import { writableLayer } from "../layer/rootfs.ts";
import { volumesFolder } from "../node/image_volumes.ts";
import type { Container } from "../state/container.ts";
import { isInGuest, type Sandbox } from "../state/sandbox.ts";
import type { DiskUsage } from "../stats/disk_usage.ts";
import { type PodNetwork, readNetworks, type InterfaceUsage } from "../stats/network_stats.ts";
import type { CgroupUsage } from "../stats/cgroup_usage.ts";
import type { Cgroup } from "../stats/sampler.ts";
import { containerCgroup } from "./cgroups.ts";
import type { Context } from "./context.ts";

export function isRunning({ phase }: Container): boolean {
  return phase.phase === "running";
}

export function isReady({ phase }: Sandbox): boolean {
  return phase.phase === "ready";
}

/** Every cgroup that stats cover; the sampler reads them periodically while clients ask. */
export function sampledCgroups(context: Context): Cgroup[] {
  return [
    ...cgroupsOf(context, context.containers.list().filter(isRunning)),
    ...context.sandboxes
      .list()
      .filter(isReady)
      .map((sandbox) => podCgroup(context, sandbox)),
  ];
}

const cgroups = new WeakMap<Container, Cgroup>();

/** Omits containers whose pod no longer exists. */
export function cgroupsOf(context: Context, containers: Container[]): Cgroup[] {
  return containers.flatMap((container) => {
    const known = cgroups.get(container);
    if (known !== undefined) return [known];
    const { id, sandboxId } = container;
    if (context.sandboxes.find(sandboxId) === undefined) return [];
    const cgroup = isInGuest(container)
      ? { id, paths: {}, usage: () => guestUsage(context, container) }
      : { id, paths: containerCgroup(context, container) };
    cgroups.set(container, cgroup);
    return [cgroup];
  });
}

/** Returns the usage that a guest's shim reports; undefined where the shim does not answer. */
async function guestUsage(context: Context, { id }: Container): Promise<CgroupUsage | undefined> {
  try {
    const { taskUsage } = await import("./task_calls.ts");
    return await taskUsage(context, id);
  } catch (error) {
    const fields = { container: id, error: messageOf(error) };
    context.log.debug("a shim has not told its container's usage", fields);
    return undefined;
  }
}

export function podCgroup(context: Context, { id, cgroup }: Sandbox): Cgroup {
  return { id, paths: context.cgroup.podCgroup(cgroup.parent, id).paths, processes: true };
}

/** The running containers of each pod. */
export function runningByPod(context: Context, sandboxes: Sandbox[]): Map<string, Container[]> {
  const byPod = new Map<string, Container[]>(sandboxes.map(({ id }) => [id, []]));
  for (const container of context.containers.list()) {
    if (isRunning(container)) byPod.get(container.sandboxId)?.push(container);
  }
  return byPod;
}

/** The folders into which a container writes on disk: its writable layer, and its copies of the image's volumes. */
export function writtenFolders(containerFolder: string): string[] {
  return [writableLayer(containerFolder), volumesFolder(containerFolder)];
}

/** Disk usage of each container's writable layer and volumes, by id. */
export async function writableLayerUsage(
  context: Context,
  containers: Container[],
): Promise<Map<string, DiskUsage>> {
  const folderOf = ({ id }: Container) => context.containers.folderOf(id);
  const usages = await context.layers.of(containers.map(folderOf));
  return new Map(
    containers.flatMap((container) => {
      const usage = usages.get(folderOf(container));
      return usage === undefined ? [] : [[container.id, usage] as const];
    }),
  );
}

/** Interfaces of each pod with its own network namespace, by id. */
export function networkUsageOf(
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
    context.log.warn("reading the network of pods without a process failed", { problem }),
  );
}
