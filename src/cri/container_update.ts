// UpdateContainerResources: applies an update as a whole or not at all. The record first gets the limits
// from before the update; an update that fails, or that a crash cuts off, is rolled back to those.
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import { toBigInt, toLong } from "../base/int64.ts";
import { trustedJsonValue } from "../base/json.ts";
import { step } from "../base/failpoints.ts";
import { parentCpuset, processes } from "../node/cgroup.ts";
import { requireMemoryRoom } from "../node/memory_room.ts";
import { callRuntime } from "../node/oci_runtime.ts";
import type { ResourceChange } from "../nri/convert.ts";
import type { LinuxContainerResources, UpdateContainerResourcesRequest } from "../proto/types.ts";
import { ociJson, bigIntegers, type OciResources } from "../spec/oci_types.ts";
import {
  checkHugepages,
  controllerAdvice,
  explicitResources,
  isSameRequest,
  mergedResources,
  ociResources,
  possibleOomScoreAdj,
  updatedResources,
  withoutLowSwapLimit,
} from "../spec/resources.ts";
import { updateBegun, updateEnded, type Container } from "../state/container.ts";
import { isByShim } from "../state/sandbox.ts";
import { writeFileAtomic } from "../sys/file.ts";
import { setOomScoreAdj } from "../sys/process.ts";
import { readSpec, specFile } from "./bundle.ts";
import { containerCgroup } from "./cgroups.ts";
import { stepSignal, type Call, type Context } from "./context.ts";
import { requireUpdatable } from "./preconditions.ts";
import { handlerOf } from "./runtime_handlers.ts";
import { supportedResources } from "./supported_resources.ts";

/** @throws CriError NOT_FOUND, FAILED_PRECONDITION after the container's exit, or the runtime's error. */
export async function updateContainerResources(
  context: Context,
  request: UpdateContainerResourcesRequest,
  call: Call,
): Promise<object> {
  const { id } = context.containers.get(request.container_id ?? "");
  using _ = await context.nri?.enter(call.signal);
  const container = context.containers.get(id);
  requireUpdatable(container);
  const hasAnnotations = Object.keys(request.annotations ?? {}).length > 0;
  const annotations = hasAnnotations ? request.annotations : null;
  if (!request.linux && !annotations) return {};
  const given = request.linux ?? {};
  const annotated = annotations ? { ...container, updateAnnotations: annotations } : container;
  const updated = await context.nri?.updateContainer(annotated, given);
  const { change } = updated ?? {};
  // NRI's resources lack oom_score_adj.
  const resources = { ...(change?.resources ?? given), oom_score_adj: given.oom_score_adj };
  await changeResources(context, id, { ...change, resources, annotations }, call);
  await context.nri?.updatedContainer(id, given, updated?.steps ?? []);
  return {};
}

/** The limits from before an update, as its record has them for a rollback. */
type Before = OciResources & { oomScoreAdj?: number | undefined };

type Update = ResourceChange & { annotations?: Record<string, string> | null };

/**
 * Sets all of the given resources, or none; returns all of the container's, before and after. Throws as
 * updateContainerResources does.
 */
export async function changeResources(
  context: Context,
  id: string,
  { resources: given, pidsLimit, annotations }: Update,
  call: Call,
): Promise<{ before: OciResources; after: OciResources }> {
  // Before the lock: the container's removal may hold it until the plugin that asks for this update has answered.
  requireUpdatable(context.containers.get(id));
  using _ = await context.containers.lock(id, call.signal);
  const container = context.containers.get(id);
  requireUpdatable(container);
  if (!(await rollBackUpdate(context, container))) {
    // The record of this update would replace the record of the limits from before the earlier one.
    const message = `updating container ${id}: an earlier update failed and cannot be rolled back (the daemon's log says why): try again later, or replace the container`;
    throw new CriError("FAILED_PRECONDITION", message);
  }
  const old = withoutLowSwapLimit(container.config.linux?.resources ?? {});
  const merged = mergedResources(old, supportedResources(context, id, given));
  const oomScoreAdj = wantedOomScoreAdj(context, given);
  const spec = await readSpec(context, id);
  if (container.phase.phase === "running") {
    checkHugepages(old, merged, spec.linux.resources);
    merged.hugepage_limits = old.hugepage_limits ?? [];
  }
  // Runtimes keep limits that an update omits: to roll back, "no pids limit" must be explicit.
  const none = pidsLimit === undefined ? {} : { pids: { limit: -1n } };
  const before: OciResources = { ...none, ...spec.linux.resources };
  const resources = updatedResources(before, {
    was: ociResources(old, [], context.host),
    wanted: ociResources(merged, [], context.host),
  });
  if (pidsLimit !== undefined) resources.pids = { limit: pidsLimit };
  if (container.phase.phase === "running") {
    const paths = containerCgroup(context, container);
    requireMemoryRoom(`container ${id}`, paths, { before, after: resources });
  }
  const isSame =
    isSameRequest(old, merged) && ociJson(before) === ociJson(resources) && !annotations;
  if (isSame) {
    await repeat(context, container, resources, call);
    return { before, after: resources };
  }
  const undo = ociJson({ ...before, oomScoreAdj: spec.process.oomScoreAdj } satisfies Before);
  try {
    await step("update-record", () =>
      context.containers.update(id, (now) => updateBegun(now, undo)),
    );
    if (container.phase.phase === "running") {
      await step("runtime-update", () =>
        updateRuntime(context, container, resources, stepSignal(context, call)),
      );
    }
    const set = oomScoreAdj && changeOomScoreAdj(context, container, oomScoreAdj);
    if (set !== undefined) merged.oom_score_adj = toLong(set);
    await step("update-bundle", () => writeBundle(context, id, { resources, oomScoreAdj: set }));
    await step("update-done", () =>
      context.containers.update(id, (now) => updateEnded(now, merged, annotations)),
    );
  } catch (error) {
    await rollBackUpdate(context, updateBegun(container, undo));
    throw updateError(context, id, resources, error);
  }
  context.log.info("container updated", { container: id });
  return { before, after: resources };
}

/**
 * Sets limits that a running container already has, in case another program has changed its cgroup: older kubelets
 * repeat cpusets every ten seconds for that. Records and the log stay as they are.
 */
async function repeat(
  context: Context,
  container: Container,
  resources: OciResources,
  call: Call,
): Promise<void> {
  const { id, phase } = container;
  if (phase.phase !== "running") return;
  try {
    await updateRuntime(context, container, resources, stepSignal(context, call));
  } catch (error) {
    throw updateError(context, id, resources, error);
  }
}

function updateError({ host }: Context, id: string, resources: OciResources, cause: unknown) {
  const message = messageOf(cause);
  const why = controllerAdvice(resources, host, message);
  return new CriError(codeOf(cause), `updating container ${id}: ${message}${why}`, { cause });
}

/** Returns the requested oom_score_adj, and the possible one; undefined: the update does not mention it. */
function wantedOomScoreAdj(context: Context, given: LinuxContainerResources) {
  const wanted = toBigInt(given.oom_score_adj);
  if (wanted === 0n) return undefined;
  const { host, config } = context;
  return { wanted, possible: possibleOomScoreAdj(wanted, host, config.restrictOomScoreAdj) };
}

/** Sets oom_score_adj on the first process, whose future children inherit it. Returns the effective value. */
function changeOomScoreAdj(
  context: Context,
  container: Container,
  { wanted, possible }: { wanted: bigint; possible: number },
): number {
  const { id, phase } = container;
  const isRunning = phase.phase === "running";
  const set = isRunning ? setOnFirstProcess(context, container, possible) : possible;
  if (set !== undefined && BigInt(set) !== wanted) {
    const why = "it may not be lower (CAP_SYS_RESOURCE, restrict-oom-score-adj)";
    const fields = { container: id, requested: String(wanted), set, why };
    context.log.warn("oom_score_adj is clamped", fields);
  }
  return set ?? possible;
}

/** Returns the value that the kernel took; undefined if the process has ended. */
function setOnFirstProcess(
  context: Context,
  container: Container,
  value: number,
): number | undefined {
  if (container.phase.phase !== "running") return undefined;
  const { pid } = container.phase;
  const isInContainer = () => processes(containerCgroup(context, container)).includes(pid);
  return setOomScoreAdj(pid, value, isInContainer);
}

/**
 * Restores cgroup, bundle and record to their state before the update recorded in `container`, if there is
 * one. Returns false if that fails: the record stays, and the next update or the next daemon retries.
 */
export async function rollBackUpdate(context: Context, container: Container): Promise<boolean> {
  const { id, config, updating } = container;
  if (updating === undefined) return true;
  try {
    const { oomScoreAdj, ...before } = trustedJsonValue(updating, bigIntegers) as Before;
    const now = context.containers.find(id);
    if (now?.phase.phase === "running") {
      if (oomScoreAdj !== undefined) setOnFirstProcess(context, now, oomScoreAdj);
      const cpuset = parentCpuset(containerCgroup(context, container));
      const explicit = explicitResources(before, context.host, cpuset);
      const signal = AbortSignal.timeout(context.config.runtimeTimeoutMs);
      await updateRuntime(context, container, explicit, signal);
    }
    await writeBundle(context, id, { resources: before, oomScoreAdj });
    const resources = config.linux?.resources ?? {};
    await context.containers.update(id, (now) => updateEnded(now, resources));
    return true;
  } catch (error) {
    if (context.containers.find(id)?.phase.phase === "exited") return true; // its cgroup is removed
    const message = "rolling back a container update failed, the next update or daemon retries";
    context.log.error(message, { container: id, error: messageOf(error) });
    return false;
  }
}

async function updateRuntime(
  context: Context,
  container: Container,
  resources: OciResources,
  signal: AbortSignal,
): Promise<void> {
  const { id } = container;
  const { devices: _, ...limits } = resources;
  if (isByShim(container)) {
    const { updateTask } = await import("./task_calls.ts");
    return await updateTask(context, id, limits);
  }
  const { command } = handlerOf(context, container);
  const path = join(context.config.state, `update-${id}`);
  const file = `${path}.json`;
  await writeFile(file, ociJson(limits), { mode: 0o600 });
  try {
    const options = { logFile: `${path}.log`, signal };
    await callRuntime(command, ["update", "--resources", file, id], options);
  } finally {
    await rm(file, { force: true });
  }
}

/** Sets the limits in config.json, with which a created container will start. */
async function writeBundle(
  context: Context,
  id: string,
  { resources, oomScoreAdj }: { resources: OciResources; oomScoreAdj: number | undefined },
): Promise<void> {
  const spec = await readSpec(context, id);
  spec.linux.resources = resources;
  if (oomScoreAdj !== undefined) spec.process.oomScoreAdj = oomScoreAdj;
  await writeFileAtomic(specFile(context, id), ociJson(spec));
  context.nri?.changedSpec(id);
}
