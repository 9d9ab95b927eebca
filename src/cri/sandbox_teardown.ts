// What ends a sandbox, in one place: Stop, Remove, the undoing of a failed RunPodSandbox, and
// recovery. Every step can be repeated, and looks at the record for what there is to do.
import { rm } from "node:fs/promises";
import { messageOf } from "../base/errors.ts";
import { step } from "../base/failpoints.ts";
import { unpinNamespace } from "../node/namespaces.ts";
import { podFiles, removePodFiles } from "../node/pod_files.ts";
import { ending, notReady, tornDown, type Sandbox } from "../state/sandbox.ts";
import { podFolder, type Context } from "./context.ts";
import { hasCgroup } from "./facts.ts";
import { removePause } from "./pause.ts";

/** An undoing has a deadline of its own: the call that failed may have none left. */
const undoMs = 120_000;

/**
 * Stops what the sandbox runs and takes its network and namespaces away; the network namespace's
 * file stays, as iSulad has it. @throws CriError when a step failed, to be called again.
 */
export async function tearDown(
  context: Context,
  sandbox: Sandbox,
  signal: AbortSignal,
): Promise<void> {
  const { id, namespaces, networkSettings } = sandbox;
  await context.nri?.stopPodSandbox(sandbox);
  if (sandbox.pause !== undefined) {
    await step("pause-remove", () => removePause(context, sandbox));
  }
  if (sandbox.cni !== undefined) {
    const target = { id, netnsPath: networkSettings.SandboxKey };
    await step("cni-del", () => context.cni.del(target, sandbox.cni, signal));
  }
  await step("namespaces-unpin", async () => {
    for (const kind of ["net", "ipc", "uts", "user"] as const) {
      const pinned = namespaces[kind];
      if (pinned !== undefined) await unpinNamespace(pinned.path, { unlink: kind !== "net" });
    }
  });
  const files = podFiles(podFolder(context, id), namespaces.ipc === undefined);
  await step("sandbox-files-remove", () => removePodFiles(files));
}

/** What is left of a sandbox that was torn down: its cgroup, its files, its record and its name. */
export async function release(
  context: Context,
  sandbox: Sandbox,
  signal: AbortSignal,
): Promise<void> {
  const { id, namespaces, cgroup } = sandbox;
  await context.nri?.removePodSandbox(sandbox);
  if (namespaces.net !== undefined) await unpinNamespace(namespaces.net.path, { unlink: true });
  await step("sandbox-cgroup-remove", async () => {
    if (!hasCgroup(context, sandbox)) return;
    await context.cgroup.removePodCgroup({ ...cgroup, podId: id }, signal);
  });
  await rm(podFolder(context, id), { recursive: true, force: true });
  context.usernsAccess.revoke(id);
  await step("sandbox-remove", () => context.sandboxes.remove(id));
  context.sandboxes.release(sandbox.name, id);
}

/** Undoes a start that failed; what cannot be undone is listed as NOTREADY, and tried again. */
export async function undoSandbox(context: Context, sandbox: Sandbox): Promise<void> {
  const { sandboxes } = context;
  try {
    const failed = (old: Sandbox) => notReady(old, "its start has failed");
    await sandboxes.update(sandbox.id, failed, { happened: true });
    const signal = AbortSignal.timeout(undoMs);
    await tearDown(context, sandbox, signal);
    await release(context, sandbox, signal);
  } catch (error) {
    const message = `a failed start could not be undone: ${messageOf(error)}`;
    context.log.error(message, { sandbox: sandbox.id });
    // Listed even where a full disk does not take it: its name is reserved until it has been removed.
    await sandboxes.put(ending(sandbox, "undo", message), { happened: true });
  }
}

/**
 * Goes on with a Stop or an undoing that has failed, whoever asks for it or not.
 * @throws CriError when it has failed again.
 */
export async function endSandbox(context: Context, id: string, signal: AbortSignal): Promise<void> {
  using _ = await context.sandboxes.lock(id);
  const sandbox = context.sandboxes.listed(id);
  if (sandbox?.ending === undefined) return;
  context.log.warn("going on with what has failed", { sandbox: id, what: sandbox.ending });
  await tearDown(context, sandbox, signal);
  if (sandbox.ending === "undo") await release(context, sandbox, signal);
  else await context.sandboxes.update(id, tornDown, { happened: true });
}
