// Finds the cgroups of pods and containers, and sets the limits of pod cgroups.
import type { CgroupPaths } from "../node/cgroup.ts";
import { requireMemoryRoom } from "../node/memory_room.ts";
import type { OciResources } from "../spec/oci_types.ts";
import { explicitResources, ociResources, summedResources } from "../spec/resources.ts";
import type { Container } from "../state/container.ts";
import { isInGuest, type Sandbox } from "../state/sandbox.ts";
import type { Context } from "./context.ts";
import { containersOf } from "./sandbox_lookup.ts";
import { supportedHugepages } from "./supported_resources.ts";

/** Cgroups of the other driver date from an earlier boot (recovery/cgroup_driver.ts) and no longer exist. */
export function hasCgroup({ cgroup }: Context, sandbox: Sandbox): boolean {
  return sandbox.cgroup.driver === cgroup.name;
}

/** Paths of a container's cgroup; {} if its pod no longer exists, or the container is in a guest. */
export function containerCgroup(context: Context, container: Container): CgroupPaths {
  if (isInGuest(container)) return {};
  const { id, sandboxId, cgroupDriver, cgroupsPath } = container;
  if (cgroupDriver !== undefined && cgroupDriver !== context.cgroup.name) return {};
  const sandbox = context.sandboxes.find(sandboxId);
  if (sandbox !== undefined && !hasCgroup(context, sandbox)) return {};
  if (cgroupsPath !== undefined) return context.cgroup.pathsOf(cgroupsPath);
  if (sandbox === undefined) return {};
  return context.cgroup.containerPaths(sandbox.cgroup.parent, sandboxId, id);
}

/** Applies the pod's configured limits, unless a kubelet owns the cgroup. Throws as the driver does. */
export async function limitPod(context: Context, sandbox: Sandbox): Promise<void> {
  if (sandbox.cgroup.parent !== "") return;
  const limits = explicitResources(podLimits(context, sandbox), context.host, {});
  const signal = AbortSignal.timeout(context.config.runtimeTimeoutMs);
  await context.cgroup.limitPod(sandbox.id, limits, signal);
}

/** Refuses new limits of the pod that would have its processes OOM-killed. @throws CriError FAILED_PRECONDITION */
export function requirePodRoom(context: Context, sandbox: Sandbox, changed: Sandbox): void {
  const { id, cgroup } = sandbox;
  if (cgroup.parent !== "") return;
  const { paths } = context.cgroup.podCgroup(cgroup.parent, id);
  const [before, after] = [podLimits(context, sandbox), podLimits(context, changed)];
  const parts = containersOf(context, id).flatMap((container) => {
    const { unified } = containerCgroup(context, container);
    return unified === undefined ? [] : [unified];
  });
  requireMemoryRoom(`pod ${id}`, paths, { before, after, parts });
}

function podLimits(context: Context, { config }: Sandbox): OciResources {
  const { overhead, resources } = config.linux ?? {};
  const requested = supportedHugepages(context, summedResources(resources ?? {}, overhead ?? {}));
  return ociResources(requested, [], context.host);
}
