// The monitor replaces itself by another build of the executable: execve in place, so that pid, children and
// chosen descriptors stay. Everything that can fail comes before it and is taken back when it does.
import { untilAborted } from "../base/abort.ts";
import { CriError } from "../base/errors.ts";
import type { Gate } from "../base/gate.ts";
import { Descriptor, keepOnExec } from "../sys/descriptor.ts";
import { lastWords, run } from "../sys/process.ts";
import { execve } from "../sys/wait.ts";
import type { Containers } from "./containers.ts";
import type { MonitorLock } from "./monitor_lock.ts";
import { monitorWords } from "./protocol.ts";
import type { LogWorkers } from "./worker_client.ts";

/** How long the new executable may take to read the records. */
const checkMs = 10_000;
/** How long calls that run (an exec) are waited for. */
const quiesceMs = 10_000;

/** What is passed on from one build to the next, by number on its command line. */
export type Inherited = { lock?: Descriptor; terminals: Map<string, Descriptor> };

/** Only returns by throwing: then this monitor goes on as if nothing had been. */
export async function upgrade(
  argv: string[],
  parts: {
    state: string;
    place: MonitorLock;
    gate: Gate;
    containers: Containers;
    workers: LogWorkers;
  },
): Promise<never> {
  const { state, place, gate, containers, workers } = parts;
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
  await untilAborted(quiet, "waiting for the ends of containers", late);
  undo.defer(() => workers.continue());
  await workers.pause();
  const terminals = containers.terminals;
  const { lock } = place;
  for (const passed of [lock, ...terminals.values()]) {
    undo.defer(() => keepOnExec(passed, false));
    keepOnExec(passed, true);
  }
  const next = [...argv, ...monitorWords(state), "--lock", String(lock.fd), "--terminals"];
  execve([...next, [...terminals].map(([id, { fd }]) => `${id}=${fd}`).join(",")], process.env);
}

/** @throws CriError FAILED_PRECONDITION when the new executable cannot go on with what there is. */
async function checkNext(argv: string[], state: string): Promise<void> {
  const check = [...argv, "monitor", "--check-state", state];
  const result = await run(check, { signal: AbortSignal.timeout(checkMs), cwd: "/" });
  const { exitCode } = result;
  if (exitCode === 0) return;
  const why = lastWords(result);
  throw new CriError("FAILED_PRECONDITION", `${check.join(" ")}: exit code ${exitCode}: ${why}`);
}

/** What `upgrade` has put into the command line. @throws CriError INVALID_ARGUMENT. */
export function inheritedFrom(words: string[]): Inherited {
  const after = (name: string) => words[words.indexOf(name) + 1] ?? "";
  if (!words.includes("--lock")) return { terminals: new Map() };
  const terminals = new Map<string, Descriptor>();
  for (const entry of after("--terminals").split(",").filter(Boolean)) {
    const [id = "", fd = ""] = entry.split("=");
    terminals.set(id, Descriptor.inherited(fd));
  }
  return { lock: Descriptor.inherited(after("--lock")), terminals };
}
