// What is ours on this host and has no record: found at the start and every minute, and removed.
// What has a record and is gone is committed as ended. In one pass, in this order:
//
// - sandboxes whose RunPodSandbox was cut off by the end of an earlier daemon: undone
// - sandboxes whose namespace files are gone: NOTREADY
// - containers that the OCI runtime has and no record: killed and deleted
// - mounts, folders under state and network namespaces of unknown pods and containers: removed
// - CNI attachments of unknown pods: DEL with what was cached at ADD
// - cgroups of unknown pods under our own parent: removed
import { existsSync, readdirSync, readFileSync, realpathSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { messageOf } from "./base/errors.ts";
import type { Context } from "./cri/context.ts";
import { checkSandbox } from "./cri/sandbox.ts";
import { undoSandbox } from "./cri/sandbox_teardown.ts";
import { netnsFolder, netnsPrefix, unpinNamespace } from "./node/namespaces.ts";
import { MNT_DETACH, unmount } from "./sys/mount.ts";

const sweepEveryMs = 60_000;
/** For one pass; a hung plugin must not stop the ones after. */
const sweepMs = 300_000;

/** Starts the passes; the first one runs at once, beside everything else. */
export function sweepOrphans(context: Context, cutOff: string[]): Disposable {
  let sweeping = false;
  const pass = async (ids: string[]) => {
    if (sweeping) return;
    sweeping = true;
    await sweep(context, ids);
    sweeping = false;
  };
  void pass(cutOff);
  const timer = setInterval(() => void pass([]), sweepEveryMs);
  return { [Symbol.dispose]: () => clearInterval(timer) };
}

async function sweep(context: Context, cutOff: string[]): Promise<void> {
  const signal = AbortSignal.timeout(sweepMs);
  const passes: [string, () => Promise<void>][] = [
    ["sandboxes that were cut off", () => undoCutOff(context, cutOff)],
    ["sandboxes", () => checkSandboxes(context)],
    ["containers of the runtime", () => removeContainers(context)],
    ["mounts", () => removeMounts(context)],
    ["folders", () => removeFolders(context)],
    ["network namespaces", () => removeNetns(context)],
    ["CNI attachments", () => detach(context, signal)],
    ["cgroups", () => removeCgroups(context, signal)],
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

async function undoCutOff(context: Context, ids: string[]): Promise<void> {
  for (const id of ids) {
    using _ = await context.sandboxes.lock(id);
    const sandbox = context.sandboxes.find(id);
    if (sandbox === undefined) continue;
    context.log.warn("undoing a RunPodSandbox that was cut off", { sandbox: id });
    await undoSandbox(context, sandbox);
  }
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
      await context.monitor.call("remove", { id, runtime, timeoutMs });
    }
  }
}

/** Root file systems, /dev/shm and pinned namespaces; in the set-aside folders too. */
async function removeMounts(context: Context): Promise<void> {
  const mounts = readFileSync("/proc/self/mountinfo", "utf8").trim().split("\n").toReversed();
  const paths = mounts.map((line) => line.split(" ")[4]!);
  const { graph, state } = context.config;
  // mountinfo has no symbolic links, and /var/run is one.
  for (const [top, kinds] of [
    [realpathSync(graph), ["sandboxes", "containers", "set-aside"]],
    [realpathSync(state), ["sandboxes"]],
  ] as const) {
    for (const path of paths.filter((path) => path.startsWith(`${top}/`))) {
      const [kind = "", id = ""] = path.slice(top.length + 1).split("/");
      const isOurs = kinds.some((known) => known === kind);
      if (!isOurs || (kind !== "set-aside" && knows(context, id))) continue;
      context.log.warn("unmounting what has no record", { path });
      unmount(path, MNT_DETACH);
    }
  }
}

/** What lies under state for one pod or container. */
async function removeFolders(context: Context): Promise<void> {
  for (const kind of ["stdio", "sandboxes"]) {
    const folder = join(context.config.state, kind);
    for (const id of entries(folder)) {
      if (!knows(context, id)) await rm(join(folder, id), { recursive: true, force: true });
    }
  }
}

async function removeNetns(context: Context): Promise<void> {
  const prefix = netnsPrefix(context.instance);
  for (const name of entries(netnsFolder).filter((name) => name.startsWith(prefix))) {
    if (context.sandboxes.knowsPrefix(name.slice(prefix.length))) continue;
    context.log.warn("removing a network namespace without a record", { name });
    await unpinNamespace(join(netnsFolder, name), { unlink: true });
  }
}

async function detach(context: Context, signal: AbortSignal): Promise<void> {
  for (const id of await context.cni.attached()) {
    if (context.sandboxes.knows(id)) continue;
    context.log.warn("CNI DEL for a pod without a record", { sandbox: id });
    await context.cni.del({ id, netnsPath: "" }, undefined, signal);
  }
}

async function removeCgroups(context: Context, signal: AbortSignal): Promise<void> {
  for (const pod of context.cgroup.ownPods()) {
    if (context.sandboxes.knows(pod.podId)) continue;
    context.log.warn("removing a pod's cgroup without a record", { sandbox: pod.podId });
    await context.cgroup.removePodCgroup(pod, signal);
  }
}
