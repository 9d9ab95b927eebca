// What a new daemon does with what an older one left. The differences, and the rule for each:
//
// - a graph folder that another program filled: refused, nothing is touched
// - a record that cannot be read: set aside, told of, and the start goes on
// - a sandbox that was being made: undone, as if its RunPodSandbox had failed
// - a sandbox or container of an earlier boot: its namespaces and processes are gone: NOTREADY, EXITED
// - a ready sandbox whose namespace file is not the one recorded: NOTREADY
// - a running container that the monitor has an exit of: that exit
// - a running container that the monitor does not know: EXITED, reason Unknown
// - a container that runs without a record: killed and removed from the runtime
import { readdirSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { CriError, messageOf } from "./base/errors.ts";
import { nowNs } from "./base/int64.ts";
import { commitExit } from "./cri/container_end.ts";
import type { Context } from "./cri/context.ts";
import { checkSandbox } from "./cri/sandbox.ts";
import { undoSandbox } from "./cri/sandbox_teardown.ts";
import type { Hello } from "./monitor/protocol.ts";
import { lost, running } from "./state/container.ts";
import { notReady } from "./state/sandbox.ts";
import { readTextIfExists } from "./sys/file.ts";

/** What marks a graph folder as ours, and its layout. */
const markFile = "isulad-ts.json";

/** @throws CriError FAILED_PRECONDITION for a folder that is not ours, or of a newer version. */
export async function claimGraph(graph: string): Promise<void> {
  const mark = await readTextIfExists(join(graph, markFile));
  if (mark !== undefined) {
    const { layout } = JSON.parse(mark) as { layout: number };
    if (layout === 1) return;
    throw new CriError(
      "FAILED_PRECONDITION",
      `${graph} has layout ${layout}, which a newer isulad-ts made: use that, or another graph folder`,
    );
  }
  const strange = readdirSync(graph).filter((name) => name !== "lost+found");
  if (strange.length > 0) {
    throw new CriError(
      "FAILED_PRECONDITION",
      `${graph} holds files of another program (${strange.slice(0, 5).join(", ")}): set graph to a folder of its own`,
    );
  }
  await writeFile(join(graph, markFile), `${JSON.stringify({ layout: 1 })}\n`, { mode: 0o644 });
}

/** Reads the records and brings them up to date with this host; the monitor comes after. */
export async function recover(context: Context): Promise<void> {
  const { sandboxes, containers, config, bootId, log } = context;
  const aside = join(config.graph, "set-aside");
  const problems = [...(await sandboxes.load(aside)), ...(await containers.load(aside))];
  for (const problem of problems) log.error(problem);
  for (const container of containers.list()) {
    if (container.bootId === bootId) continue;
    const message = "the node was restarted";
    await containers.update(container.id, (old) => lost(old, message, String(nowNs())));
  }
  for (const sandbox of sandboxes.list()) {
    if (sandbox.bootId !== bootId) {
      await sandboxes.update(sandbox.id, (old) => notReady(old, "the node was restarted"));
    } else if (sandbox.phase.phase === "creating") {
      log.warn("undoing a RunPodSandbox that was cut off", { sandbox: sandbox.id });
      await undoSandbox(context, sandbox);
    } else {
      await checkSandbox(context, sandbox);
    }
  }
}

/** After each connection to the monitor: what ended meanwhile, what it does not know, what we do not. */
export function syncWithMonitor(context: Context, hello: Hello): void {
  sync(context, hello).catch((error: unknown) => {
    context.log.error("the monitor's containers were not taken over", { error: messageOf(error) });
  });
}

async function sync(context: Context, hello: Hello): Promise<void> {
  const { containers, log } = context;
  const exits = new Map(hello.exits.map((exit) => [exit.id, exit]));
  const live = new Map(hello.running.map((container) => [container.id, container]));
  for (const { id, phase, bootId } of containers.list()) {
    const exit = exits.get(id);
    const started = live.get(id);
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
}
