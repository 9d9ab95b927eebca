// Upgrades the monitor in place to another build of the executable: execve keeps pid, children and chosen
// descriptors. Every step that can fail comes before execve and is rolled back.
import { untilAborted } from "../base/abort.ts";
import { CriError } from "../base/errors.ts";
import type { Gate } from "../base/gate.ts";
import { Descriptor, keepOnExec } from "../sys/descriptor.ts";
import { withEngineOptions } from "../sys/engine_options.ts";
import { failureOutput, run } from "../sys/run.ts";
import { execve } from "../sys/wait.ts";
import type { Containers } from "./containers.ts";
import type { MonitorLock } from "./monitor_lock.ts";
import { monitorArgs } from "./protocol.ts";
import type { LogWorkers } from "./log_workers.ts";

/** How long the new executable may take to read the records: a slow disk reads it for the first time. */
const checkMs = 20_000;
/** Limit for the calls under way (execs) to end. */
const quiesceMs = 10_000;

/** Descriptors passed from one build to the next, by number on its command line. */
export type Inherited = { lock?: Descriptor; terminals: Map<string, Descriptor> };

/** Returns only by throwing; this monitor then goes on unchanged. */
export async function upgrade(
  argv: string[],
  parts: {
    state: string;
    lock: MonitorLock;
    gate: Gate;
    containers: Containers;
    workers: LogWorkers;
  },
): Promise<never> {
  const { state, gate, containers, workers } = parts;
  await checkNext(argv, state);
  using undo = new DisposableStack();
  // Not queued: the first upgrade, when it succeeds, never opens the gate.
  if (gate.isClosed) {
    throw new CriError("FAILED_PRECONDITION", "another upgrade of the monitor is under way");
  }
  const late = AbortSignal.timeout(quiesceMs);
  undo.use(await gate.close(late));
  // A step of its own: after a roll-back nothing may begin that would stop the monitor from seeing exits.
  const quiet = containers.quiesce();
  undo.defer(() => containers.release());
  await untilAborted(quiet, "waiting for the exits of containers", late);
  undo.defer(() => workers.continue());
  await workers.pause();
  const terminals = containers.terminals;
  const { descriptor: lock } = parts.lock;
  for (const passed of [lock, ...terminals.values()]) {
    undo.defer(() => keepOnExec(passed, false));
    keepOnExec(passed, true);
  }
  const next = [...argv, ...monitorArgs(state), "--lock", String(lock.fd), "--terminals"];
  const passed = [...terminals].map(([id, { fd }]) => `${id}=${fd}`).join(",");
  execve(argv[0]!, [...next, passed], withEngineOptions(process.env));
}

/** @throws CriError FAILED_PRECONDITION when the new executable cannot read this monitor's records. */
async function checkNext(argv: string[], state: string): Promise<void> {
  const check = [...argv, "monitor", "--check-state", state];
  const result = await run(check, { signal: AbortSignal.timeout(checkMs), cwd: "/" });
  const { exitCode } = result;
  if (exitCode === 0) return;
  const why = failureOutput(result);
  throw new CriError("FAILED_PRECONDITION", `${check.join(" ")}: exit code ${exitCode}: ${why}`);
}

/** Parses the arguments that `upgrade` has added to the command line. */
export function inheritedFrom(args: string[]): Inherited {
  const after = (name: string) => args[args.indexOf(name) + 1] ?? "";
  if (!args.includes("--lock")) return { terminals: new Map() };
  const terminals = new Map<string, Descriptor>();
  for (const entry of after("--terminals").split(",").filter(Boolean)) {
    const [id = "", fd = ""] = entry.split("=");
    terminals.set(id, Descriptor.inherited(fd));
  }
  return { lock: Descriptor.inherited(after("--lock")), terminals };
}
