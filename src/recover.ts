// What a new daemon does with what an older one left. The differences, and the rule for each:
//
// - a graph folder that another program filled: refused, nothing is touched
// - containers and pods of this boot that the other cgroup driver made: refused, nothing is touched
// - a record of a newer version: refused, nothing is touched; of an older one: migrated
// - a record that cannot be read: set aside, told of, and the start goes on
// - a sandbox that was being made: undone, as if its RunPodSandbox had failed (orphans.ts)
// - a container that was being made: undone, as if its CreateContainer had failed
// - a sandbox or container of an earlier boot: its namespaces and processes are gone: NOTREADY, EXITED;
//   what outlives a boot (CNI addresses) is released at once (orphans.ts)
// - a ready sandbox whose namespace file is not the one recorded, or whose pause container has ended:
//   NOTREADY
// - a container that the monitor has an exit of: that exit
// - a created container that runs: its Start was cut off after the fact: RUNNING
// - a running container that the monitor does not know: EXITED, reason Unknown
// - a container whose UpdateContainerResources was cut off: taken back to the resources on record
// - a container that runs although its record says it has ended, or without a record: killed
import { randomBytes } from "node:crypto";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import * as v from "valibot";
import { CriError, messageOf } from "./base/errors.ts";
import { nowNs } from "./base/int64.ts";
import { commitExit } from "./cri/container_end.ts";
import { removingCommand, type Context } from "./cri/context.ts";
import { undoContainer } from "./cri/container_create.ts";
import { undoUpdate } from "./cri/container_update.ts";
import type { Hello } from "./monitor/protocol.ts";
import { lost, running } from "./state/container.ts";
import { ending, notReady } from "./state/sandbox.ts";
import { readTextIfExists, writeFileAtomic } from "./sys/file.ts";

/** What marks a graph folder as ours: its layout, and a name for it. */
const markFile = "isulad-ts.json";
const layoutKnown = 1;

/**
 * Returns the graph folder's instance: 8 hexadecimal digits.
 * @throws CriError FAILED_PRECONDITION for a folder that is not ours, or of a newer version.
 */
export async function claimGraph(graph: string): Promise<string> {
  const path = join(graph, markFile);
  const text = await readTextIfExists(path);
  if (text !== undefined) return readMark(path, text);
  const strange = readdirSync(graph).filter((name) => name !== "lost+found");
  if (strange.length > 0) {
    throw new CriError(
      "FAILED_PRECONDITION",
      `${graph} holds files of another program (${strange.slice(0, 5).join(", ")}): set graph to a folder of its own`,
    );
  }
  const instance = randomBytes(4).toString("hex");
  const mark = `${JSON.stringify({ layout: layoutKnown, instance })}\n`;
  await writeFileAtomic(path, mark, { mode: 0o644, fsync: true });
  return instance;
}

const Mark = v.object({
  layout: v.number(),
  instance: v.pipe(v.string(), v.regex(/^[0-9a-f]{8}$/)),
});

function readMark(path: string, text: string): string {
  let mark: v.InferOutput<typeof Mark>;
  try {
    mark = v.parse(Mark, JSON.parse(text));
  } catch (cause) {
    throw new CriError(
      "FAILED_PRECONDITION",
      `${path}, which marks the graph folder, is damaged (${messageOf(cause)}): put {"layout":1,"instance":"0badf00d"} into it, with any 8 hexadecimal digits, or use another graph folder`,
      { cause },
    );
  }
  if (mark.layout === layoutKnown) return mark.instance;
  throw new CriError(
    "FAILED_PRECONDITION",
    `${path} tells of layout ${mark.layout}, which a newer isulad-ts made: use that, or another graph folder`,
  );
}

/**
 * Reads the records and brings them up to date with this boot; the monitor and orphans.ts come after.
 * @throws CriError FAILED_PRECONDITION when the cgroup driver was changed over containers that exist.
 */
export async function recover(context: Context): Promise<void> {
  const { sandboxes, containers, config, bootId, log } = context;
  const aside = join(config.graph, "set-aside");
  const problems = [...(await sandboxes.load(aside)), ...(await containers.load(aside))];
  for (const problem of problems) log.error(problem);
  refuseOtherDriver(context);
  for (const container of containers.list()) {
    if (container.phase.phase === "creating") {
      log.warn("undoing a CreateContainer that was cut off", { container: container.id });
      await undoContainer(context, container);
    } else if (container.bootId !== bootId) {
      const message = "the node was restarted";
      await containers.update(container.id, (old) => lost(old, message, String(nowNs())));
    }
  }
  for (const { id, bootId: boot, phase } of sandboxes.list()) {
    if (phase.phase === "creating") {
      await sandboxes.update(id, (old) => ending(old, "undo", "its RunPodSandbox was cut off"));
    } else if (boot !== bootId) {
      await sandboxes.update(id, (old) => ending(old, "stop", "the node was restarted"));
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

/** After each connection to the monitor: what ended meanwhile, what it does not know, what we do not. */
export function syncWithMonitor(context: Context, hello: Hello): void {
  sync(context, hello).catch((error: unknown) => {
    context.log.error("the monitor's containers were not taken over", { error: messageOf(error) });
  });
}

/** UpdateContainerResources calls that the end of an earlier daemon, or a failure, left half done. */
async function undoUpdates(context: Context): Promise<void> {
  for (const { id, updating } of context.containers.list()) {
    if (!updating) continue;
    using _ = await context.containers.lock(id);
    const container = context.containers.find(id);
    if (!container?.updating) continue;
    context.log.warn("undoing an update that was cut off", { container: id });
    await undoUpdate(context, container);
  }
}

async function sync(context: Context, hello: Hello): Promise<void> {
  const { containers, sandboxes, log } = context;
  for (const { id, pause, phase } of sandboxes.list()) {
    if (phase.phase !== "ready" || pause === undefined) continue;
    if (hello.running.some((container) => container.id === id)) continue;
    await sandboxes.update(id, (old) => notReady(old, "its pause container has ended"));
  }
  const exits = new Map(hello.exits.map((exit) => [exit.id, exit]));
  const live = new Map(hello.running.map((container) => [container.id, container]));
  for (const { id, phase, bootId, runtimeHandler } of containers.list()) {
    const exit = exits.get(id);
    const started = live.get(id);
    if (phase.phase === "exited" && started !== undefined) {
      log.warn("killing a container whose start has failed", { container: id });
      const runtime = removingCommand(context, runtimeHandler);
      const timeoutMs = context.config.runtimeTimeoutMs;
      await context.monitor.call("remove", { id, runtime, timeoutMs });
    }
    if (phase.phase === "exited" || bootId !== context.bootId) continue;
    if (exit !== undefined) await commitExit(context, id, exit);
    else if (started !== undefined) {
      await containers.update(id, (old) => running(old, started.pid, started.startedAtNs));
    } else if (phase.phase === "running") {
      log.warn("no monitor knows this container", { container: id });
      const message = "no monitor saw its end";
      await containers.update(id, (old) => lost(old, message, String(nowNs())));
      context.exits.exited(id);
    }
  }
  await undoUpdates(context);
}
