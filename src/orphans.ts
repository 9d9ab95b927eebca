// What is ours on this host and has no record: found at the start and every minute, and removed.
// What has a record and is gone is committed as ended. In one pass, in this order:
//
// - containers that the OCI runtime has and no record: killed and deleted
// - sandboxes whose RunPodSandbox was cut off by the end of an earlier daemon, or whose undoing or Stop
//   has failed, or whose node was restarted: undone or torn down, again and again with longer pauses
// - sandboxes whose namespace files are gone: NOTREADY
// - mounts of unknown pods and containers under graph and state, and containers' folders under state: removed
// - CNI attachments of unknown pods: DEL with what was cached at ADD, until it passes
// - network namespaces of unknown pods: removed, but not before that: without its namespace a plugin
//   cannot find all that it has to undo
// - cgroups of unknown pods, and with each the pod's folder under state. That folder is made before the
//   cgroup, and tells that the pod was this daemon's: another one may have the same cgroup parent
// - what only CNI plugins know of: GC, where they have it, at the start and every hour
import { existsSync, readdirSync, realpathSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { Backoff } from "./base/backoff.ts";
import { messageOf } from "./base/errors.ts";
import { podFolder, type Context } from "./cri/context.ts";
import { logFailure } from "./base/log.ts";
import { checkSandbox, containersOf } from "./cri/sandbox.ts";
import { endSandbox } from "./cri/sandbox_teardown.ts";
import type { RecordedPod } from "./node/cni_gc.ts";
import { netnsFolder, netnsPath, netnsPrefix, unpinNamespace } from "./node/namespaces.ts";
import type { Container } from "./state/container.ts";
import { MNT_DETACH, unmount } from "./sys/mount.ts";
import { mountPoints } from "./sys/mount_table.ts";

const sweepEveryMs = 60_000;
/** Between two tries for one pod. */
const againMsMax = 60 * 60_000;
const collectEveryMs = 60 * 60_000;
/** For one pass; a hung plugin must not stop the ones after. */
const sweepMs = 300_000;

/** What the passes keep in mind. */
type Sweeper = {
  context: Context;
  /** Of pods whose network or namespaces could not be taken away. */
  backoff: Backoff;
  /** When CNI GC ran last, by performance.now(). */
  collectedMs: number;
};

/** Starts the passes; the first one runs at once, beside everything else. */
export function sweepOrphans(context: Context): Disposable {
  const backoff = new Backoff({ firstMs: sweepEveryMs, maxMs: againMsMax });
  const sweeper = { context, backoff, collectedMs: -Infinity };
  let sweeping = false;
  const pass = async () => {
    if (sweeping) return;
    sweeping = true;
    await sweep(sweeper).finally(() => (sweeping = false));
  };
  const failed = logFailure(context.log, "orphans were not all removed");
  pass().catch(failed);
  const timer = setInterval(() => {
    pass().catch(failed);
  }, sweepEveryMs);
  return { [Symbol.dispose]: () => clearInterval(timer) };
}

async function sweep(sweeper: Sweeper): Promise<void> {
  const { context } = sweeper;
  const signal = AbortSignal.timeout(sweepMs);
  const passes: [string, () => Promise<void>][] = [
    ["containers of the runtime", () => removeContainers(context)],
    ["sandboxes that are to end", () => endSandboxes(sweeper, signal)],
    ["sandboxes", () => checkSandboxes(context)],
    ["mounts", () => removeMounts(context)],
    ["folders of streams", () => removeStdio(context)],
    ["CNI attachments", () => detach(sweeper, signal)],
    ["network namespaces", () => removeNetns(context)],
    ["cgroups and folders of pods", () => removePods(context, signal)],
    ["CNI attachments that only plugins know", () => collectNetworks(sweeper)],
  ];
  for (const [what, pass] of passes) {
    try {
      await pass();
    } catch (error) {
      context.log.warn(`orphaned ${what} were not all removed`, { error: messageOf(error) });
    }
  }
}

/** Asked after the listing: what is being made has its id before it has anything else. */
function knows(context: Context, id: string): boolean {
  return context.sandboxes.knows(id) || context.containers.knows(id);
}

function entries(folder: string): string[] {
  return existsSync(folder) ? readdirSync(folder) : [];
}

/** One that fails holds up no other. */
async function attempt(
  context: Context,
  fields: Record<string, string>,
  act: () => unknown,
): Promise<void> {
  try {
    await act();
  } catch (error) {
    context.log.warn("it is tried again in a minute", { ...fields, error: messageOf(error) });
  }
}

/** Runs each that is due; one that fails is due again later, and holds up no other. */
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
      context.log.warn("it is tried again later", { sandbox: id, error: messageOf(error) });
    }
  }
}

async function endSandboxes(sweeper: Sweeper, signal: AbortSignal): Promise<void> {
  const { context } = sweeper;
  const due = context.sandboxes.list().filter(
    // A Stop comes again for containers that run.
    ({ id, ending }) => ending !== undefined && !containersOf(context, id).some(isRunning),
  );
  const ids = due.map(({ id }) => id);
  await eachDue(sweeper, ids, (id) => endSandbox(context, id, signal));
}

function isRunning({ phase }: Container): boolean {
  return phase.phase === "running";
}

async function checkSandboxes(context: Context): Promise<void> {
  for (const sandbox of context.sandboxes.list()) await checkSandbox(context, sandbox);
}

async function removeContainers(context: Context): Promise<void> {
  const commands = new Set([...context.handlers.values()].map(({ command }) => command));
  for (const runtime of commands) {
    for (const id of entries(runtime.root)) {
      if (knows(context, id)) continue;
      context.log.warn("removing a container without a record", { container: id });
      const timeoutMs = context.config.runtimeTimeoutMs;
      // A runtime may be gone, or fail for one.
      const remove = () => context.monitor.call("remove", { id, runtime, timeoutMs });
      await attempt(context, { container: id }, remove);
    }
  }
}

/** Root file systems, /dev/shm and pinned namespaces; in the set-aside folders too. */
async function removeMounts(context: Context): Promise<void> {
  const { graph, state } = context.config;
  // mountinfo has no symbolic links, and /var/run is one.
  for (const [top, kinds] of [
    [realpathSync(graph), ["sandboxes", "containers", "set-aside"]],
    [realpathSync(state), ["sandboxes"]],
  ] as const) {
    for (const path of mountPoints(top).toReversed()) {
      const [kind = "", id = ""] = path.slice(top.length + 1).split("/");
      const isOurs = kinds.some((known) => known === kind);
      if (!isOurs || (kind !== "set-aside" && knows(context, id))) continue;
      context.log.warn("unmounting what has no record", { path });
      await attempt(context, { path }, () => unmount(path, MNT_DETACH));
    }
  }
}

async function removeStdio(context: Context): Promise<void> {
  const folder = join(context.config.state, "stdio");
  for (const id of entries(folder)) {
    if (knows(context, id)) continue;
    const path = join(folder, id);
    await attempt(context, { path }, () => rm(path, { recursive: true, force: true }));
  }
}

async function detach(sweeper: Sweeper, signal: AbortSignal): Promise<void> {
  const { context } = sweeper;
  const attached = await context.cni.attached();
  const ids = attached.filter((id) => !context.sandboxes.knows(id));
  await eachDue(sweeper, ids, async (id) => {
    context.log.warn("CNI DEL for a pod without a record", { sandbox: id });
    await context.cni.del({ id, netnsPath: netnsPath(context.instance, id) }, undefined, signal);
  });
}

async function removeNetns(context: Context): Promise<void> {
  const prefix = netnsPrefix(context.instance);
  const attached = await context.cni.attached();
  for (const name of entries(netnsFolder).filter((name) => name.startsWith(prefix))) {
    const id = name.slice(prefix.length);
    if (context.sandboxes.knowsPrefix(id) || attached.some((one) => one.startsWith(id))) continue;
    context.log.warn("removing a network namespace without a record", { name });
    const path = join(netnsFolder, name);
    await attempt(context, { path }, () => unpinNamespace(path, { unlink: true }));
  }
}

async function collectNetworks(sweeper: Sweeper): Promise<void> {
  const { context, collectedMs } = sweeper;
  if (performance.now() - collectedMs < collectEveryMs) return;
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

async function removePods(context: Context, signal: AbortSignal): Promise<void> {
  for (const id of entries(join(context.config.state, "sandboxes"))) {
    if (context.sandboxes.knows(id)) continue;
    context.log.warn("removing cgroup and folder of a pod without a record", { sandbox: id });
    await attempt(context, { sandbox: id }, async () => {
      await context.cgroup.removePodCgroup(context.cgroup.ownPod(id), signal);
      await rm(podFolder(context, id), { recursive: true, force: true });
    });
  }
}
