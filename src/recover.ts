// What a new daemon does with what an older one left. The differences, and the rule for each:
//
// - a graph folder that another program filled, or whose mark is gone: refused, nothing is touched
//   (folders.ts); one whose first start was cut off: claimed
// - containers and pods of this boot that the other cgroup driver made: refused, nothing is touched
// - a record of a newer version: refused, nothing is touched; of an older one: migrated
// - a record that cannot be read, or is no file: set aside (passed over where the disk is too full for
//   that), told of, and the start goes on
// - a folder with no record yet, for its RunPodSandbox or CreateContainer was cut off at its first step:
//   removed
// - an unpacked layer whose record cannot be used: dropped, and with it the images that need it; its tree
//   stays while a root is mounted from it (layer/layers.ts)
// - a graph folder without room to try overlayfs in: the layers tell the storage driver (layer/storage.ts)
// - a sandbox whose folder in the graph is lost, with its last change under state: undone; containers of
//   such a pod are without a record, too
// - a sandbox whose CNI attachments are of no use: CNI DEL takes the cached ones (node/cni.ts)
// - a tag that two images have, for its move was cut off: the one's that was pulled later
//   (image/records.ts)
// - a sandbox or container whose removal was cut off: the rest of its folder goes, beside everything else
// - a container that was being made: undone, as if its CreateContainer had failed
// - a sandbox or container of an earlier boot: its namespaces and processes are gone: NOTREADY, EXITED;
//   what outlives a boot (CNI addresses) is released at once (zombies.ts). Also a sandbox whose record
//   says that it was being made: it may have been ready, the record a second old (record_files.ts)
// - a sandbox of this boot that was being made: undone, as if its RunPodSandbox had failed (zombies.ts).
//   One that has containers had been made, and its later records are lost: NOTREADY
// - a ready sandbox whose namespace file is not the one recorded, or whose pause container has ended:
//   NOTREADY
// - a container that the monitor has an exit of: that exit; where it has no record: forgotten
// - a created container that runs: its Start was cut off after the fact: RUNNING
// - a created container that the monitor is starting: the outcome is waited for, and no other attempt of that
//   name is created meanwhile
// - a running container, or a pause container, that the monitor does not know: the monitor is given it
//   (cri/adopt.ts) and tells of its exit, with reason Unknown where the kernel has not kept the code; one
//   that the monitor does not take is killed first: EXITED, reason Unknown
// - a container whose UpdateContainerResources was cut off: taken back to the resources on record
// - a container that runs although its record says it has ended, or without a record: killed
import { join } from "node:path";
import { CriError, messageOf } from "./base/errors.ts";
import { logFailure } from "./base/log.ts";
import { nowNs } from "./base/clock.ts";
import { adoptContainer, adoptPause } from "./cri/adopt.ts";
import { commitExit } from "./cri/container_end.ts";
import { removingCommand, type Context } from "./cri/context.ts";
import { followStart } from "./cri/container.ts";
import { undoContainer } from "./cri/container_create.ts";
import { undoUpdate } from "./cri/container_update.ts";
import { rootfsOwner } from "./cri/facts.ts";
import { containersOf } from "./cri/sandbox.ts";
import type { ExitRecord, Hello } from "./monitor/protocol.ts";
import { lost, running, type Container } from "./state/container.ts";
import { abandoned, ending, notReady, type Sandbox } from "./state/sandbox.ts";
import { letGroupPass } from "./sys/passage.ts";

/**
 * Reads the records and brings them up to date with this boot; the monitor and zombies.ts come after.
 * @throws CriError FAILED_PRECONDITION when the cgroup driver was changed over containers that exist.
 */
export async function recover(context: Context): Promise<void> {
  const { sandboxes, containers, config, bootId, log } = context;
  const aside = join(config.graph, "set-aside");
  const problems = [
    ...(await sandboxes.restoreStrays(abandoned)),
    ...(await sandboxes.load(aside)),
    ...(await containers.load(aside)),
  ];
  for (const problem of problems) log.error(problem);
  refuseOtherDriver(context);
  openPassages(context);
  removeRemains(context).catch(logFailure(log, "remains of records were not all removed"));
  for (const container of containers.list()) {
    if (container.phase.phase === "creating") {
      log.warn("undoing a CreateContainer that was cut off", { container: container.id });
      await undoContainer(context, container);
    } else if (container.bootId !== bootId) {
      const message = "the node was restarted";
      const change = (old: Container) => lost(old, message, String(nowNs()));
      await containers.update(container.id, change, { happened: true });
    }
  }
  for (const { id, bootId: boot, phase } of sandboxes.list()) {
    const change = (old: Sandbox) => {
      if (boot !== bootId) return ending(old, "stop", "the node was restarted");
      if (phase.phase !== "creating") return old;
      return containersOf(context, id).length > 0
        ? ending(old, "stop", "its later records are lost")
        : ending(old, "undo", "its RunPodSandbox was cut off");
    };
    await sandboxes.update(id, change, { happened: true });
  }
}

/** Beside everything else: nobody waits for what a container that is gone has written. */
async function removeRemains({ sandboxes, containers, log }: Context): Promise<void> {
  for (const store of [sandboxes, containers]) {
    for (const problem of await store.removeRemains()) log.error(problem);
  }
}

/** Existing pods with a user namespace start further containers, also those of a build without it. */
function openPassages(context: Context): void {
  const { sandboxes, containers, usernsAccess, log } = context;
  usernsAccess.apply();
  for (const sandbox of sandboxes.list()) {
    const owner = rootfsOwner(sandbox);
    if (owner === undefined) continue;
    try {
      usernsAccess.grant(sandbox.id, owner.gid);
      for (const { id } of containersOf(context, sandbox.id)) {
        letGroupPass(containers.folderOf(id), owner.gid);
      }
    } catch (error) {
      const fields = { sandbox: sandbox.id, error: messageOf(error) };
      log.error("containers of a pod with a user namespace cannot be started", fields);
    }
  }
}

/** Of what a refusal lists. */
const listedMax = 20;

/** The cgroups of an earlier boot are gone, whichever driver made them. */
function refuseOtherDriver({ sandboxes, containers, cgroup, bootId }: Context): void {
  const here = sandboxes.list().filter((sandbox) => sandbox.bootId === bootId);
  const drivers = new Map(here.map((sandbox) => [sandbox.id, sandbox.cgroup.driver]));
  const others = containers.list().filter((container) => {
    const driver = container.cgroupDriver ?? drivers.get(container.sandboxId) ?? cgroup.name;
    return container.bootId === bootId && driver !== cgroup.name;
  });
  const pods = here.filter((sandbox) => sandbox.cgroup.driver !== cgroup.name);
  const left = [
    ...others.map(({ id, name }) => `container ${id.slice(0, 12)} (${name})`),
    ...pods.map(({ id, name }) => `pod ${id.slice(0, 12)} (${name})`),
  ];
  if (left.length === 0) return;
  const other = cgroup.name === "systemd" ? "cgroupfs" : "systemd";
  const listed = left.slice(0, listedMax).join(", ");
  const more = left.length > listedMax ? ` and ${left.length - listedMax} more` : "";
  throw new CriError(
    "FAILED_PRECONDITION",
    `the cgroup driver is to be ${cgroup.name}, but there are containers or pods of the driver ${other}: ${listed}${more}. Start with "systemd-cgroup": ${other === "systemd"}, drain the node, remove them (crictl rmp -fa), and change the driver then; or reboot the node, which ends them`,
  );
}

/**
 * After each connection to the monitor. Returns when the phases that the monitor reports are committed, so
 * that a daemon's first answer lists no container that runs as CREATED; what needs the runtime or the monitor
 * goes on after that. One container that fails holds up no other, and is tried again.
 */
export async function syncWithMonitor(context: Context, hello: Hello): Promise<void> {
  // Both as they are at the greeting: what starts meanwhile is in none of the lists.
  const [sandboxes, containers] = [context.sandboxes.list(), context.containers.list()];
  const problems: string[] = [];
  const attempt = async (id: string, act: () => Promise<unknown>) => {
    await act().catch((error: unknown) => problems.push(`${id}: ${messageOf(error)}`));
  };
  const [exits, live] = [byId(hello.exits), byId(hello.running)];
  const starting = new Set(hello.starting);
  const seen = ({ id }: Container): Seen => {
    return { exit: exits.get(id), started: live.get(id), isStarting: starting.has(id) };
  };
  for (const container of containers) {
    await attempt(container.id, () => commitSeen(context, container, seen(container)));
  }
  const rest = async () => {
    for (const sandbox of sandboxes) {
      await attempt(sandbox.id, () => syncPause(context, sandbox, live.has(sandbox.id)));
    }
    for (const container of containers) {
      await attempt(container.id, () => mendUnseen(context, container, seen(container)));
    }
    for (const { id } of containers.filter(({ updating }) => updating)) {
      await attempt(id, () => undoCutUpdate(context, id));
    }
    for (const { id } of hello.exits) {
      if (context.containers.knows(id) || context.sandboxes.knows(id)) continue;
      await attempt(id, () => remove(context, id, ""));
    }
    reportProblems(context, problems);
  };
  rest().catch(logFailure(context.log, "not all is as the monitor says"));
}

function byId<T extends { id: string }>(list: T[]): Map<string, T> {
  return new Map(list.map((one) => [one.id, one]));
}

async function remove(context: Context, id: string, runtimeHandler: string): Promise<void> {
  const runtime = removingCommand(context, runtimeHandler);
  await context.monitor.call("remove", { id, runtime, timeoutMs: context.config.runtimeTimeoutMs });
}

const againMs = 60_000;

function reportProblems(context: Context, problems: string[]): void {
  if (problems.length === 0) return;
  const fields = { failed: problems.length, first: problems[0]! };
  context.log.error("not all is as the monitor says; it is tried again in a minute", fields);
  setTimeout(() => {
    // The next connection brings a greeting.
    syncAgain(context).catch((error) =>
      context.log.debug("the monitor was not asked again", { error: messageOf(error) }),
    );
  }, againMs).unref();
}

async function syncAgain(context: Context): Promise<void> {
  const { result } = await context.monitor.call("hello", {});
  await syncWithMonitor(context, result);
}

async function syncPause(context: Context, sandbox: Sandbox, isLive: boolean): Promise<void> {
  const { id, phase, pause } = sandbox;
  if (phase.phase !== "ready" || pause === undefined || isLive) return;
  if (await adoptPause(context, sandbox, pause.pid)) return;
  const change = (old: Sandbox) => notReady(old, "its pause container has ended");
  await context.sandboxes.update(id, change, { happened: true });
}

/** What the monitor says of a container; one that is starting may be running already, or have ended. */
type Seen = {
  exit: ExitRecord | undefined;
  started: Hello["running"][number] | undefined;
  isStarting: boolean;
};

/** Commits an exit, a container that runs, and the outcome of a start under way as soon as it is known. */
async function commitSeen(
  context: Context,
  container: Container,
  { exit, started, isStarting }: Seen,
): Promise<void> {
  const { id, phase, bootId } = container;
  if (phase.phase === "exited" || bootId !== context.bootId) return;
  if (exit !== undefined) await commitExit(context, id, exit);
  else if (isStarting) {
    if (context.starting.has(id)) return; // this daemon's own
    context.log.info("waiting for a start that an earlier daemon asked for", { container: id });
    followStart(context, container).catch(() => {}); // logged with the outcome
  } else if (started !== undefined) {
    const { pid, startedAtNs } = started;
    const change = (old: Container) => running(old, pid, startedAtNs);
    await context.containers.update(id, change, { happened: true });
  }
}

/** Ends what the monitor has although its record says that it exited, and adopts what the monitor lacks. */
async function mendUnseen(
  context: Context,
  container: Container,
  { exit, started, isStarting }: Seen,
): Promise<void> {
  const { id, phase, bootId, runtimeHandler } = container;
  const isSeen = started !== undefined || isStarting;
  if (phase.phase === "exited" && isSeen) {
    context.log.warn("killing a container whose start has failed", { container: id });
    await remove(context, id, runtimeHandler);
  }
  if (phase.phase !== "running" || isSeen || exit !== undefined || bootId !== context.bootId)
    return;
  context.log.warn("the monitor does not know this container", { container: id });
  if (await adoptContainer(context, container, phase)) return;
  const message = "the monitor could not take it over, so it was killed";
  const change = (old: Container) => lost(old, message, String(nowNs()));
  await context.containers.update(id, change, { happened: true });
  context.exits.exited(id);
}

/** UpdateContainerResources that the end of an earlier daemon, or a failure, left half done. */
async function undoCutUpdate(context: Context, id: string): Promise<void> {
  using _ = await context.containers.lock(id);
  const container = context.containers.find(id);
  if (!container?.updating) return;
  context.log.warn("undoing an update that was cut off", { container: id });
  await undoUpdate(context, container);
}
