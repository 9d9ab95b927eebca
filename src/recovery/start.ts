// Reconciles the records of an earlier daemon with this boot, before the monitor is connected.
import { join } from "node:path";
import { nowNs } from "../base/clock.ts";
import { systemdRuns } from "../base/config_host.ts";
import { isReadOnlyDisk, messageOf } from "../base/errors.ts";
import { logFailure } from "../base/log.ts";
import { undoContainer } from "../cri/container_create.ts";
import type { Context } from "../cri/context.ts";
import { rootfsOwner } from "../cri/rootfs_owner.ts";
import { containersOf } from "../cri/sandbox_lookup.ts";
import { lost, type Container } from "../state/container.ts";
import { abandoned, ending, type Sandbox } from "../state/sandbox.ts";
import { allowGroupTraversal } from "../sys/group_access.ts";
import { refuseOtherDriver, refuseUnusableDriver } from "./cgroup_driver.ts";
import { containersAtStart, decide, sandboxesAtStart } from "./rules.ts";

/**
 * Reads the records and applies the rules of the start.
 * @throws CriError FAILED_PRECONDITION for records of a newer version, and for those of the other cgroup driver.
 */
export async function recoverRecords(context: Context): Promise<void> {
  const { sandboxes, containers, config, bootId, cgroup, history, log } = context;
  const setAside = join(config.graph, "set-aside");
  const problems = [
    ...(await sandboxes.restoreStrays(abandoned)),
    ...(await sandboxes.load(setAside)),
    ...(await containers.load(setAside)),
  ];
  for (const problem of problems) log.error(problem);
  const records = { sandboxes: sandboxes.list(), containers: containers.list() };
  refuseOtherDriver(cgroup.name, bootId, records, systemdRuns());
  refuseUnusableDriver(cgroup.name, bootId, records, systemdRuns());
  history.recovered(records.sandboxes, records.containers);
  openPassages(context);
  finishRemovals(context).catch(
    logFailure(log, "the folders of removed records were not all removed"),
  );
  for (const container of containers.list()) {
    const { phase } = container.phase;
    const rule = decide(containersAtStart, { phase, isThisBoot: container.bootId === bootId });
    if (rule !== undefined) await containerEffects[rule](context, container);
  }
  for (const { id, bootId: boot, phase } of sandboxes.list()) {
    const hasContainers = containersOf(context, id).length > 0;
    const facts = { phase: phase.phase, isThisBoot: boot === bootId, hasContainers };
    const rule = decide(sandboxesAtStart, facts);
    if (rule !== undefined) await sandboxes.update(id, sandboxEffects[rule], { happened: true });
  }
  for (const { id, bootId: boot, cgroup: made } of sandboxes.list()) {
    if (boot !== bootId || made.driver === cgroup.name) continue;
    const why = `the cgroup driver ${made.driver}, with which it was made, does not work on this host`;
    await sandboxes.update(id, (old) => ending(old, "stop", why), { happened: true });
  }
}

const rebooted = "the node was restarted";

const containerEffects: Record<
  keyof typeof containersAtStart,
  (context: Context, container: Container) => Promise<void>
> = {
  undoCreate: async (context, container) => {
    context.log.warn("undoing a CreateContainer that was cut off", { container: container.id });
    await undoContainer(context, container);
  },
  loseInReboot: async ({ containers }, { id }) => {
    const change = (old: Container) => lost(old, rebooted, String(nowNs()));
    await containers.update(id, change, { happened: true });
  },
};

const sandboxEffects: Record<keyof typeof sandboxesAtStart, (old: Sandbox) => Sandbox> = {
  stopAfterReboot: (old) => ending(old, "stop", rebooted),
  stopUnrecorded: (old) => ending(old, "stop", "its later records are lost"),
  undoRun: (old) => ending(old, "undo", "its RunPodSandbox was cut off"),
};

/** Finishes interrupted removals in the background: a removed container may have written many files. */
async function finishRemovals({ sandboxes, containers, log }: Context): Promise<void> {
  for (const store of [sandboxes, containers]) {
    for (const problem of await store.finishRemovals()) log.error(problem);
  }
}

/** Lets pods with a user namespace reach new containers' roots, also pods of builds that did not grant it. */
function openPassages(context: Context): void {
  const { sandboxes, containers, usernsAccess, log } = context;
  const gids = new Map<string, number>();
  for (const sandbox of sandboxes.list()) {
    const owner = rootfsOwner(sandbox);
    if (owner !== undefined) gids.set(sandbox.id, owner.gid);
  }
  try {
    usernsAccess.restore(gids);
  } catch (error) {
    if (gids.size === 0 && isReadOnlyDisk(error)) return;
    if (gids.size === 0) throw error;
    const fields = { pods: gids.size, error: messageOf(error) };
    log.error("containers of pods with a user namespace cannot be started", fields);
  }
  for (const [sandbox, gid] of gids) {
    try {
      for (const { id } of containersOf(context, sandbox)) {
        allowGroupTraversal(containers.folderOf(id), gid);
      }
    } catch (error) {
      const fields = { sandbox, error: messageOf(error) };
      log.error("containers of a pod with a user namespace cannot be started", fields);
    }
  }
}
