// UpdateContainerResources: all of it or nothing. The intent is on record first; what fails, or is cut
// off by the daemon's end, is taken back to the resources on record, which are the ones from before.
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { throwIfAborted } from "../base/abort.ts";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import { toBigInt } from "../base/int64.ts";
import { step } from "../base/steps.ts";
import { parentCpuset } from "../node/cgroup.ts";
import { callRuntime } from "../node/runtime.ts";
import type { ResourceChange } from "../nri/convert.ts";
import type { LinuxContainerResources, UpdateContainerResourcesRequest } from "../proto/types.ts";
import { ociJson, parseOciJson, type OciResources } from "../spec/oci_types.ts";
import {
  explicitResources,
  mergedResources,
  ociResources,
  updatedResources,
} from "../spec/resources.ts";
import { updateBegun, updateEnded, type Container } from "../state/container.ts";
import { writeFileAtomic } from "../sys/file.ts";
import { readSpec, specFile } from "./bundle.ts";
import { handlerOf, stepSignal, type Call, type Context } from "./context.ts";
import { containerCgroup } from "./facts.ts";

/** @throws CriError NOT_FOUND, FAILED_PRECONDITION for one that has ended, or what the runtime said. */
export async function updateContainerResources(
  context: Context,
  request: UpdateContainerResourcesRequest,
  call: Call,
): Promise<object> {
  const container = context.containers.get(request.container_id ?? "");
  const { id } = container;
  checkLive(container);
  if (!request.linux) return {};
  const change = await context.nri?.updateContainer(container, request.linux);
  await changeResources(context, id, change ?? { resources: request.linux }, call);
  context.nri?.updatedContainer(id);
  return {};
}

function checkLive({ id, phase }: Container): void {
  if (phase.phase !== "exited") return;
  throw new CriError("FAILED_PRECONDITION", `container ${id} has exited: it has no resources`);
}

/** Sets what is given, or nothing. Throws as updateContainerResources does. */
export async function changeResources(
  context: Context,
  id: string,
  { resources: given, pidsLimit }: ResourceChange,
  call: Call,
): Promise<void> {
  using _ = await context.containers.lock(id);
  const container = context.containers.get(id);
  checkLive(container);
  throwIfAborted(`updating container ${id}`, call.signal);
  if (container.updating) await undoUpdate(context, container);
  const old = container.config.linux?.resources ?? {};
  const merged = mergedResources(old, given);
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
  try {
    await step("update-record", () =>
      context.containers.update(id, (now) => updateBegun(now, ociJson(before))),
    );
    if (container.phase.phase === "running") {
      await step("runtime-update", () =>
        updateRuntime(context, container, resources, stepSignal(context, call)),
      );
    }
    await step("update-bundle", () => writeBundle(context, id, resources));
    await step("update-done", () =>
      context.containers.update(id, (now) => updateEnded(now, merged)),
    );
  } catch (error) {
    const message = messageOf(error);
    await undoUpdate(context, updateBegun(container, ociJson(before)));
    throw new CriError(codeOf(error), `updating container ${id}: ${message}`, { cause: error });
  }
  context.log.info("container updated", { container: id });
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
    const before = parseOciJson(updating) as OciResources;
    if (context.containers.find(id)?.phase.phase === "running") {
      const cpuset = parentCpuset(containerCgroup(context, container));
      const explicit = explicitResources(before, context.host, cpuset);
      const signal = AbortSignal.timeout(context.config.runtimeTimeoutMs);
      await updateRuntime(context, container, explicit, signal);
    }
    await writeBundle(context, id, before);
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
async function writeBundle(context: Context, id: string, resources: OciResources): Promise<void> {
  const spec = await readSpec(context, id);
  spec.linux.resources = resources;
  await writeFileAtomic(specFile(context, id), ociJson(spec));
  context.nri?.changedSpec(id);
}
