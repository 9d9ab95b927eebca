// UpdateContainerResources: all of it or nothing. The intent is on record first; what fails, or is cut
// off by the daemon's end, is taken back to the resources on record, which are the ones from before.
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { throwIfAborted } from "../base/abort.ts";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import { toBigInt, toLong } from "../base/int64.ts";
import { step } from "../base/failpoints.ts";
import { parentCpuset, processes } from "../node/cgroup.ts";
import { callRuntime } from "../node/oci_runtime.ts";
import type { ResourceChange } from "../nri/convert.ts";
import type { LinuxContainerResources, UpdateContainerResourcesRequest } from "../proto/types.ts";
import { ociJson, parseOciJson, type OciResources } from "../spec/oci_types.ts";
import {
  explicitResources,
  mergedResources,
  ociResources,
  possibleOomScoreAdj,
  updatedResources,
} from "../spec/resources.ts";
import { updateBegun, updateEnded, type Container } from "../state/container.ts";
import { writeFileAtomic } from "../sys/file.ts";
import { setOomScoreAdj } from "../sys/process.ts";
import { readSpec, specFile } from "./bundle.ts";
import { handlerOf, stepSignal, type Call, type Context } from "./context.ts";
import { containerCgroup } from "./facts.ts";
import { heldResources } from "./held_resources.ts";

/** @throws CriError NOT_FOUND, FAILED_PRECONDITION for one that has ended, or what the runtime said. */
export async function updateContainerResources(
  context: Context,
  request: UpdateContainerResourcesRequest,
  call: Call,
): Promise<object> {
  const container = context.containers.get(request.container_id ?? "");
  const { id } = container;
  checkLive(container);
  const annotations =
    Object.keys(request.annotations ?? {}).length > 0 ? request.annotations : null;
  if (!request.linux && !annotations) return {};
  const given = request.linux ?? {};
  const annotated = annotations ? { ...container, updateAnnotations: annotations } : container;
  const change = await context.nri?.updateContainer(annotated, given);
  // Plugins have no word for it.
  const { oom_score_adj } = given;
  const resources = { ...(change?.resources ?? given), oom_score_adj };
  await changeResources(context, id, { ...change, resources, annotations }, call);
  context.nri?.updatedContainer(id);
  return {};
}

function checkLive({ id, phase }: Container): void {
  if (phase.phase !== "exited") return;
  throw new CriError("FAILED_PRECONDITION", `container ${id} has exited: it has no resources`);
}

/** What an update has changed, and what is put back where it fails. */
type Limits = { resources: OciResources; oomScoreAdj: number | undefined };

type Update = ResourceChange & { annotations?: Record<string, string> | null };

/** Sets what is given, or nothing. Throws as updateContainerResources does. */
export async function changeResources(
  context: Context,
  id: string,
  { resources: given, pidsLimit, annotations }: Update,
  call: Call,
): Promise<void> {
  using _ = await context.containers.lock(id);
  const container = context.containers.get(id);
  checkLive(container);
  throwIfAborted(`updating container ${id}`, call.signal);
  if (container.updating) await undoUpdate(context, container);
  const old = container.config.linux?.resources ?? {};
  const merged = mergedResources(old, heldResources(context, id, given));
  const oomScoreAdj = wantedOomScoreAdj(context, given);
  if (container.phase.phase === "running") checkHugepages(old, merged);
  const spec = await readSpec(context, id);
  // What is absent from an update stays, and so an undone one has to say that there was no limit.
  const none = pidsLimit === undefined ? {} : { pids: { limit: -1n } };
  const before: OciResources = { ...none, ...spec.linux.resources };
  const resources = updatedResources(before, {
    was: ociResources(old, [], context.host),
    wanted: ociResources(merged, [], context.host),
  });
  if (pidsLimit !== undefined) resources.pids = { limit: pidsLimit };
  const undo = ociJson({ ...before, oomScoreAdj: spec.process.oomScoreAdj });
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
    const message = messageOf(error);
    await undoUpdate(context, updateBegun(container, undo));
    throw new CriError(codeOf(error), `updating container ${id}: ${message}`, { cause: error });
  }
  context.log.info("container updated", { container: id });
}

/** undefined: the update says nothing about it. */
function wantedOomScoreAdj(context: Context, given: LinuxContainerResources) {
  const wanted = toBigInt(given.oom_score_adj);
  if (wanted === 0n) return undefined;
  const { host, config } = context;
  return { wanted, possible: possibleOomScoreAdj(wanted, host, config.restrictOomScoreAdj) };
}

/** Of its first process, whose later children inherit it; returns what it has now, or begins with. */
function changeOomScoreAdj(
  context: Context,
  container: Container,
  { wanted, possible }: { wanted: bigint; possible: number },
): number {
  const { id, phase } = container;
  const set = phase.phase === "running" ? setOfInit(context, container, possible) : possible;
  if (set !== undefined && BigInt(set) !== wanted) {
    const why = "it may not be lower (CAP_SYS_RESOURCE, restrict-oom-score-adj)";
    context.log.warn("oom_score_adj is not set as asked", {
      container: id,
      asked: String(wanted),
      set,
      why,
    });
  }
  return set ?? possible;
}

function setOfInit(context: Context, container: Container, value: number): number | undefined {
  if (container.phase.phase !== "running") return undefined;
  const { pid } = container.phase;
  const isInit = () => processes(containerCgroup(context, container)).includes(pid);
  return setOomScoreAdj(pid, value, isInit);
}

/** Runtimes cannot change them; a kubelet repeats those that the container was made with. */
function checkHugepages(old: LinuxContainerResources, merged: LinuxContainerResources): void {
  const limits = new Map((old.hugepage_limits ?? []).map((one) => [one.page_size, one.limit]));
  for (const { page_size, limit } of merged.hugepage_limits ?? []) {
    if (toBigInt(limits.get(page_size)) === toBigInt(limit)) continue;
    throw new CriError(
      "FAILED_PRECONDITION",
      `hugepage_limits: the limit of ${page_size} cannot be changed in a running container`,
    );
  }
}

/**
 * Brings cgroup, bundle and record back to what they were before the update that `container` has on
 * record. What fails stays on record, for the next update or the next daemon.
 */
export async function undoUpdate(context: Context, container: Container): Promise<void> {
  const { id, config, updating } = container;
  if (updating === undefined) return;
  try {
    const { oomScoreAdj, ...before } = parseOciJson(updating) as OciResources & {
      oomScoreAdj?: number;
    };
    const now = context.containers.find(id);
    if (now?.phase.phase === "running") {
      if (oomScoreAdj !== undefined) setOfInit(context, now, oomScoreAdj);
      const cpuset = parentCpuset(containerCgroup(context, container));
      const explicit = explicitResources(before, context.host, cpuset);
      const signal = AbortSignal.timeout(context.config.runtimeTimeoutMs);
      await updateRuntime(context, container, explicit, signal);
    }
    await writeBundle(context, id, { resources: before, oomScoreAdj });
    const resources = config.linux?.resources ?? {};
    await context.containers.update(id, (now) => updateEnded(now, resources));
  } catch (error) {
    if (context.containers.find(id)?.phase.phase === "exited") return; // it has no cgroup any more
    const fields = { container: id, error: messageOf(error) };
    context.log.error("an update that failed was not undone yet", fields);
  }
}

async function updateRuntime(
  context: Context,
  { id, runtimeHandler }: Container,
  resources: OciResources,
  signal: AbortSignal,
): Promise<void> {
  const folder = context.containers.folderOf(id);
  const file = join(folder, "update.json");
  const { devices: _, ...limits } = resources;
  // A file: a child's standard input may be a socket, which runtimes cannot open by its path.
  await writeFile(file, ociJson(limits), { mode: 0o600 });
  try {
    const { command } = handlerOf(context, runtimeHandler);
    const options = { logFile: join(folder, "update.log"), signal };
    await callRuntime(command, ["update", "--resources", file, id], options);
  } finally {
    await rm(file, { force: true });
  }
}

/** config.json with these limits: what a container that was not started yet begins with. */
async function writeBundle(
  context: Context,
  id: string,
  { resources, oomScoreAdj }: Limits,
): Promise<void> {
  const spec = await readSpec(context, id);
  spec.linux.resources = resources;
  if (oomScoreAdj !== undefined) spec.process.oomScoreAdj = oomScoreAdj;
  await writeFileAtomic(specFile(context, id), ociJson(spec));
  context.nri?.changedSpec(id);
}
