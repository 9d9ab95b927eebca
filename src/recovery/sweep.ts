// Sweeps the node after the start and every minute: applies the rules of the table `orphans`, pass by pass.
import { existsSync, readdirSync, realpathSync } from "node:fs";
import { join } from "node:path";
import { Backoff } from "../base/backoff.ts";
import { messageOf } from "../base/errors.ts";
import type { Context } from "../cri/context.ts";
import { logFailure } from "../base/log.ts";
import { verifySandbox, containersOf } from "../cri/sandbox_lookup.ts";
import { endSandbox } from "../cri/sandbox_teardown.ts";
import type { RecordedPod } from "../node/cni_gc.ts";
import { shimBundles } from "../monitor/protocol.ts";
import { netnsFolders, netnsName, netnsPrefix, unpinNamespace } from "../node/namespaces.ts";
import { podFilesFolder } from "../node/pod_files.ts";
import { MNT_DETACH } from "../sys/mount.ts";
import { unmountInThread } from "../sys/unmount_thread.ts";
import { mountPoints } from "../sys/mount_table.ts";
import { orphans } from "./rules.ts";
import { removeTree } from "../sys/remove_tree.ts";

/** Delay of the first sweep: the calls that have waited for the daemon's start come first. */
const firstSweepMs = 200;
const sweepEveryMs = 60_000;
const backoffMsMax = 60 * 60_000;
/** Limit for one sweep: a hung plugin must not keep later sweeps from running. */
const sweepMs = 300_000;

/** The folders in `state` that have one folder a pod. */
const podFolders = ["sandboxes", podFilesFolder];

/** State from one sweep to the next. */
type Sweeper = {
  context: Context;
  /** Retries for pods whose network or namespaces could not be removed. */
  backoff: Backoff;
  /** When CNI GC ran last, by performance.now(). */
  collectedMs: number;
};

/** Starts the sweeps, which run in the background. */
export function startSweeps(context: Context): Disposable {
  const backoff = new Backoff({ firstMs: sweepEveryMs, maxMs: backoffMsMax });
  const sweeper = { context, backoff, collectedMs: -Infinity };
  let isRunning = false;
  const failed = logFailure(context.log, "the sweep failed, retrying in 60 s");
  const run = () => {
    if (isRunning) return;
    isRunning = true;
    sweep(sweeper)
      .finally(() => (isRunning = false))
      .catch(failed);
  };
  const first = setTimeout(run, firstSweepMs);
  const timer = setInterval(run, sweepEveryMs);
  return {
    [Symbol.dispose]: () => {
      clearTimeout(first);
      clearInterval(timer);
    },
  };
}

type Pass = (sweeper: Sweeper, signal: AbortSignal) => Promise<void>;

const passes: Record<keyof typeof orphans, Pass> = {
  removeContainers,
  endSandboxes,
  checkSandboxes,
  removeMounts,
  removeStreamFolders,
  detachNetworks,
  removeNetns,
  removePods,
  collectNetworks,
};

async function sweep(sweeper: Sweeper): Promise<void> {
  const signal = AbortSignal.timeout(sweepMs);
  for (const name of Object.keys(orphans) as (keyof typeof orphans)[]) {
    try {
      await passes[name](sweeper, signal);
    } catch (error) {
      const fields = { pass: name, error: messageOf(error) };
      sweeper.context.log.warn("a pass of the sweep failed, retrying in 60 s", fields);
    }
  }
}

/** To be called after listing the objects: a pod or container that is being made reserves its id before all else. */
function hasRecord(context: Context, id: string): boolean {
  return context.sandboxes.knows(id) || context.containers.knows(id);
}

function entries(folder: string): string[] {
  return existsSync(folder) ? readdirSync(folder) : [];
}

/** Runs a step; a failure is logged, and holds up no other step. */
async function attempt(
  context: Context,
  fields: Record<string, string>,
  act: () => unknown,
): Promise<void> {
  try {
    await act();
  } catch (error) {
    const failure = { ...fields, error: messageOf(error) };
    context.log.warn("a step of the sweep failed, retrying in 60 s", failure);
  }
}

/** Runs `act` for each id that is due; a failure delays only the retry for that id. */
async function eachDue(
  { context, backoff }: Sweeper,
  ids: string[],
  act: (id: string) => Promise<void>,
): Promise<void> {
  for (const id of ids.filter((one) => backoff.isDue(one))) {
    try {
      await act(id);
      backoff.succeeded(id);
    } catch (error) {
      backoff.failed(id);
      const fields = { sandbox: id, error: messageOf(error) };
      context.log.warn("a sandbox was not released, retrying later", fields);
    }
  }
}

async function endSandboxes(sweeper: Sweeper, signal: AbortSignal): Promise<void> {
  const { context } = sweeper;
  const due = context.sandboxes.list().filter(({ id, ending }) => {
    const hasRunning = containersOf(context, id).some((one) => one.phase.phase === "running");
    return orphans.endSandboxes.applies({ isEnding: ending !== undefined, hasRunning });
  });
  const ids = due.map(({ id }) => id);
  await eachDue(sweeper, ids, (id) => endSandbox(context, id, signal));
}

async function checkSandboxes({ context }: Sweeper): Promise<void> {
  for (const sandbox of context.sandboxes.list()) {
    const { phase } = sandbox.phase;
    if (orphans.checkSandboxes.applies({ phase })) await verifySandbox(context, sandbox);
  }
}

async function removeContainers({ context }: Sweeper): Promise<void> {
  const commands = new Set([...context.handlers.values()].map(({ command }) => command));
  for (const runtime of commands) {
    const { root, shim } = runtime;
    const folder = shim === undefined ? root : shimBundles(join(context.config.state, "monitor"));
    for (const id of entries(folder)) {
      if (!orphans.removeContainers.applies({ hasRecord: hasRecord(context, id) })) continue;
      context.log.warn("removing a container without a record", { container: id });
      const timeoutMs = context.config.runtimeTimeoutMs;
      const remove = () => context.monitor.call("remove", { id, runtime, timeoutMs });
      await attempt(context, { container: id }, remove);
    }
  }
}

/** Unmounts root file systems, pods' files, /dev/shm and pinned namespaces without a record, also those in set-aside folders. */
async function removeMounts({ context }: Sweeper): Promise<void> {
  const { graph, state } = context.config;
  // mountinfo has no symbolic links, and /var/run is one.
  for (const [top, kinds] of [
    [realpathSync(graph), ["sandboxes", "containers", "set-aside"]],
    [realpathSync(state), podFolders],
  ] as const) {
    for (const path of mountPoints(top).toReversed()) {
      const [kind = "", id = ""] = path.slice(top.length + 1).split("/");
      if (!kinds.some((known) => known === kind)) continue;
      const facts = { hasRecord: hasRecord(context, id), isSetAside: kind === "set-aside" };
      if (!orphans.removeMounts.applies(facts)) continue;
      context.log.warn("unmounting a mount without a record", { path });
      await attempt(context, { path }, () =>
        unmountInThread(path, { flags: MNT_DETACH, kind: "disk" }),
      );
    }
  }
}

async function removeStreamFolders({ context }: Sweeper): Promise<void> {
  const folder = join(context.config.state, "stdio");
  for (const id of entries(folder)) {
    if (!orphans.removeStreamFolders.applies({ hasRecord: hasRecord(context, id) })) continue;
    const path = join(folder, id);
    await attempt(context, { path }, () => removeTree(path));
  }
}

async function detachNetworks(sweeper: Sweeper, signal: AbortSignal): Promise<void> {
  const { context } = sweeper;
  const attached = await context.cni.attached();
  const ids = attached.filter((id) =>
    orphans.detachNetworks.applies({ hasRecord: context.sandboxes.knows(id) }),
  );
  await eachDue(sweeper, ids, async (id) => {
    context.log.warn("CNI DEL for a pod without a record", { sandbox: id });
    const name = netnsName(context.instance, id);
    const paths = netnsFolders(context.config).map((folder) => join(folder, name));
    const path = paths.find((one) => existsSync(one)) ?? paths[0]!;
    await context.cni.del({ id, netnsPath: path }, undefined, signal);
  });
}

async function removeNetns({ context }: Sweeper): Promise<void> {
  const prefix = netnsPrefix(context.instance);
  const attached = await context.cni.attached();
  const found = netnsFolders(context.config).flatMap((folder) =>
    entries(folder).map((name) => ({ path: join(folder, name), name })),
  );
  for (const { path, name } of found.filter((one) => one.name.startsWith(prefix))) {
    const id = name.slice(prefix.length);
    const facts = {
      hasRecord: context.sandboxes.knowsPrefix(id),
      isAttached: attached.some((one) => one.startsWith(id)),
    };
    if (!orphans.removeNetns.applies(facts)) continue;
    context.log.warn("removing a network namespace without a record", { path });
    await attempt(context, { path }, () => unpinNamespace(path, { unlink: true }));
  }
}

async function collectNetworks(sweeper: Sweeper): Promise<void> {
  const { context, collectedMs } = sweeper;
  if (!orphans.collectNetworks.applies({ sinceLastMs: performance.now() - collectedMs })) return;
  const done = await context.cni.collectGarbage(
    () => attachedPods(context),
    (id) => context.sandboxes.knows(id),
  );
  if (done) sweeper.collectedMs = performance.now();
}

function attachedPods({ sandboxes }: Context): RecordedPod[] {
  return sandboxes.list().flatMap(({ id, cni: recorded, torndown, networkSettings }) => {
    if (recorded === undefined || torndown) return [];
    return [{ id, netnsPath: networkSettings.SandboxKey, recorded }];
  });
}

async function removePods({ context }: Sweeper, signal: AbortSignal): Promise<void> {
  const { state } = context.config;
  const ids = new Set(podFolders.flatMap((folder) => entries(join(state, folder))));
  for (const id of ids) {
    if (!orphans.removePods.applies({ hasRecord: context.sandboxes.knows(id) })) continue;
    context.log.warn("removing cgroup and folders of a pod without a record", { sandbox: id });
    await attempt(context, { sandbox: id }, async () => {
      await context.cgroup.removePodCgroup(context.cgroup.ownPod(id), signal);
      for (const folder of podFolders) await removeTree(join(state, folder, id));
    });
  }
}
