// Tears sandboxes down, for Stop, Remove, the rollback of a failed RunPodSandbox, and recovery. Every step is
// idempotent and reads from the record what there is to do.
import { messageOf } from "../base/errors.ts";
import { step } from "../base/failpoints.ts";
import { unpinNamespace } from "../node/namespaces.ts";
import { removePodFiles } from "../node/pod_files.ts";
import { ending, notReady, tornDown, type Sandbox } from "../state/sandbox.ts";
import { hasCgroup } from "./cgroups.ts";
import { placeOfPod, podFolder, type Context } from "./context.ts";
import { removePause } from "./pause.ts";
import { removeTree } from "../sys/remove_tree.ts";

/** A rollback has its own deadline: the failed call may have no time left. */
const undoMs = 120_000;

/**
 * Removes the pause container, the network and the namespaces; the network namespace's file stays, as in
 * iSulad. @throws CriError when a step failed; call again.
 */
export async function tearDownSandbox(
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
  await step("sandbox-files-remove", () => removePodFiles(placeOfPod(context, sandbox)));
}

/** Removes the rest of a sandbox that was torn down: cgroup, files, record and reserved name. */
export async function releaseSandbox(
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
  await removeTree(podFolder(context, id));
  context.usernsAccess.revoke(id);
  await step("sandbox-remove", () => context.sandboxes.remove(id));
  context.sandboxes.release(sandbox.name, id);
}

/** Rolls back a failed RunPodSandbox; if that fails, the sandbox is listed as NOTREADY and retried. */
export async function undoSandbox(context: Context, sandbox: Sandbox): Promise<void> {
  const { sandboxes } = context;
  const failed = (old: Sandbox) => notReady(old, "its start failed");
  try {
    await sandboxes.update(sandbox.id, failed, { happened: true });
    const signal = AbortSignal.timeout(undoMs);
    await tearDownSandbox(context, sandbox, signal);
    await releaseSandbox(context, sandbox, signal);
  } catch (error) {
    const message = `rolling back a failed start failed, to be retried: ${messageOf(error)}`;
    context.log.error(message, { sandbox: sandbox.id });
    // Listed even if a full disk prevents the write: its name stays reserved until it is removed.
    await sandboxes.put(ending(sandbox, "undo", message), { happened: true });
  }
}

/**
 * Retries a failed Stop or rollback without a client's call. Does nothing while a call holds the sandbox's lock: a
 * failure of that call would be followed at once by another attempt. @throws CriError when the retry fails.
 */
export async function endSandbox(context: Context, id: string, signal: AbortSignal): Promise<void> {
  if (context.sandboxes.isLocked(id)) return;
  using _ = await context.sandboxes.lock(id);
  const sandbox = context.sandboxes.listed(id);
  if (sandbox?.ending === undefined) return;
  context.log.warn("retrying the teardown of a sandbox", { sandbox: id, after: sandbox.ending });
  await tearDownSandbox(context, sandbox, signal);
  if (sandbox.ending === "undo") await releaseSandbox(context, sandbox, signal);
  else await context.sandboxes.update(id, tornDown, { happened: true });
}
