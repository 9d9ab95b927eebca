// Reconciles records with what the monitor runs, after each connection to it.
import { nowNs } from "../base/clock.ts";
import { messageOf } from "../base/errors.ts";
import { logFailure } from "../base/log.ts";
import { adoptContainer, adoptPause } from "../cri/monitor_adopt.ts";
import { followStart } from "../cri/container_start.ts";
import { commitExit } from "../cri/container_end.ts";
import { rollBackUpdate } from "../cri/container_update.ts";
import type { Context } from "../cri/context.ts";
import { containerFields } from "../cri/log_subject.ts";
import { removalRuntime } from "../cri/runtime_handlers.ts";
import type { ExitRecord, Hello } from "../monitor/protocol.ts";
import { lost, running, type Container } from "../state/container.ts";
import { notReady, type Sandbox } from "../state/sandbox.ts";
import * as rules from "./rules.ts";

const retryMs = 60_000;

/** What the greeting says of one id; a container that is starting may also run already, or have ended. */
type Reported = {
  exit: ExitRecord | undefined;
  started: Hello["running"][number] | undefined;
  isStarting: boolean;
};

/**
 * Returns when the phases that the monitor reports are committed, so that a daemon's first answer lists no
 * running container as CREATED; what needs the runtime or the monitor goes on in the background. A container
 * that fails holds up no other, and is retried.
 */
export async function syncWithMonitor(context: Context, hello: Hello): Promise<void> {
  // Snapshots of the greeting's time: a container that starts meanwhile is in none of the lists.
  const [sandboxes, containers] = [context.sandboxes.list(), context.containers.list()];
  const problems: string[] = [];
  const attempt = async (id: string, act: () => Promise<unknown>) => {
    await act().catch((error: unknown) => problems.push(`${id}: ${messageOf(error)}`));
  };
  const [exits, live] = [byId(hello.exits), byId(hello.running)];
  const starting = new Set(hello.starting);
  const reportOf = ({ id }: Container): Reported => {
    return { exit: exits.get(id), started: live.get(id), isStarting: starting.has(id) };
  };
  const apply = async <Name extends string>(
    table: Record<Name, rules.Row<rules.ContainerAtGreeting>>,
    effects: Record<Name, Effect>,
  ) => {
    for (const container of containers) {
      const reported = reportOf(container);
      const rule = rules.decide(table, factsOf(context, container, reported));
      if (rule === undefined) continue;
      await attempt(container.id, () => effects[rule](context, container, reported));
    }
  };
  await apply(rules.containersAtGreeting, commits);
  const inBackground = async () => {
    for (const sandbox of sandboxes) {
      await attempt(sandbox.id, () => syncPause(context, sandbox, live.has(sandbox.id)));
    }
    await apply(rules.containersAfterGreeting, corrections);
    for (const { id, updating } of containers) {
      const facts = { isUpdating: updating !== undefined };
      const rule = rules.decide(rules.updatesAfterGreeting, facts);
      if (rule !== undefined) await attempt(id, () => undoCutUpdate(context, id));
    }
    for (const { id } of hello.exits) {
      const hasRecord = context.containers.knows(id) || context.sandboxes.knows(id);
      const rule = rules.decide(rules.exitsAfterGreeting, { hasRecord });
      if (rule !== undefined) await attempt(id, () => forgetExit(context, id));
    }
    reportProblems(context, problems);
  };
  inBackground().catch(logFailure(context.log, "the reconciliation with the monitor failed"));
}

function byId<T extends { id: string }>(list: T[]): Map<string, T> {
  return new Map(list.map((one) => [one.id, one]));
}

function factsOf(
  { bootId, starting }: Context,
  { id, bootId: boot, phase: { phase } }: Container,
  { exit, started, isStarting }: Reported,
): rules.ContainerAtGreeting {
  return {
    phase,
    isThisBoot: boot === bootId,
    hasExit: exit !== undefined,
    isRunning: started !== undefined,
    isStarting,
    isOwnStart: starting.has(id),
  };
}

type Effect = (context: Context, container: Container, reported: Reported) => Promise<void>;

const commits: Record<keyof typeof rules.containersAtGreeting, Effect> = {
  commitReportedExit: (context, { id }, { exit }) => commitExit(context, id, exit!),
  followForeignStart: async (context, container) => {
    const fields = containerFields(context, container);
    context.log.info("waiting for the outcome of a start that an earlier daemon requested", fields);
    followStart(context, container).catch((error: unknown) => {
      context.log.warn("container did not start", { ...fields, error: messageOf(error) });
    });
  },
  commitReportedStart: async (context, { id }, { started }) => {
    const { pid, startedAtNs } = started!;
    const change = (old: Container) => running(old, pid, startedAtNs);
    await context.containers.update(id, change, { happened: true });
  },
};

const corrections: Record<keyof typeof rules.containersAfterGreeting, Effect> = {
  killFailedStart: async (context, { id, runtimeHandler }) => {
    context.log.warn("killing a container whose start has failed", { container: id });
    await remove(context, id, runtimeHandler);
  },
  adoptOrLose: async (context, container) => {
    const { id, phase } = container;
    if (phase.phase !== "running") return;
    context.log.warn("the monitor does not know a running container: adopting", { container: id });
    if (await adoptContainer(context, container, phase)) return;
    const message = "the monitor refused to adopt the container, so it was killed";
    const change = (old: Container) => lost(old, message, String(nowNs()));
    await context.containers.update(id, change, { happened: true });
    context.exits.exited(id);
  },
};

async function syncPause(context: Context, sandbox: Sandbox, isRunning: boolean): Promise<void> {
  const { phase, pause } = sandbox;
  const facts = { phase: phase.phase, hasPause: pause !== undefined, isRunning };
  const rule = rules.decide(rules.sandboxesAfterGreeting, facts);
  if (rule !== undefined) await adoptPauseOrEnd(context, sandbox);
}

async function adoptPauseOrEnd(context: Context, sandbox: Sandbox): Promise<void> {
  if (await adoptPause(context, sandbox, sandbox.pause!.pid)) return;
  const change = (old: Sandbox) => notReady(old, "its pause container has ended");
  await context.sandboxes.update(sandbox.id, change, { happened: true });
}

/** An update that a failure, or the end of an earlier daemon, left half done. */
async function undoCutUpdate(context: Context, id: string): Promise<void> {
  using _ = await context.containers.lock(id);
  const container = context.containers.find(id);
  if (!container?.updating) return;
  context.log.warn("rolling back an update that was cut off", { container: id });
  await rollBackUpdate(context, container);
}

function forgetExit(context: Context, id: string): Promise<void> {
  return remove(context, id, "");
}

async function remove(context: Context, id: string, runtimeHandler: string): Promise<void> {
  const runtime = removalRuntime(context, runtimeHandler);
  await context.monitor.call("remove", { id, runtime, timeoutMs: context.config.runtimeTimeoutMs });
}

function reportProblems(context: Context, problems: string[]): void {
  if (problems.length === 0) return;
  const fields = { failed: problems.length, first: problems[0]! };
  context.log.error("the reconciliation with the monitor failed in part, retrying in 60 s", fields);
  setTimeout(() => {
    // The next connection brings another greeting.
    syncAgain(context).catch((error) =>
      context.log.debug("the monitor cannot be reached for the retry", { error: messageOf(error) }),
    );
  }, retryMs).unref();
}

async function syncAgain(context: Context): Promise<void> {
  const { result } = await context.monitor.call("hello", {});
  await syncWithMonitor(context, result);
}
