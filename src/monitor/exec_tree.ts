// Kills an exec with all its descendants, and none of the container's other processes.
import { setImmediate as nextTurn } from "node:timers/promises";
import { processes, type CgroupPaths } from "../node/cgroup.ts";
import { lineageOf, startTime, type Lineage } from "../sys/process.ts";
import { markOf } from "../sys/process_mark.ts";

export type ExecTree = {
  /** The exec's first process, until it is reaped; undefined: it has ended, or is not known. */
  leader: number | undefined;
  /** The mark of all its descendants (sys/process_mark.ts). */
  mark: number | undefined;
  /** The container's cgroup. */
  cgroup: CgroupPaths;
};

const attemptMs = 5_000;
/** Longest delay of the monitor's other work: a fork bomb has thousands of processes. */
const turnMs = 5;

/**
 * Stops the exec's processes until no new one is found, so that none forks any more, then kills them. False
 * when they fork faster than they can be stopped; the next attempt may succeed.
 */
export async function killTree(tree: ExecTree): Promise<boolean> {
  const deadline = performance.now() + attemptMs;
  /** Pid → start time, which together identify one process. */
  const doomed = new Map<number, string>();
  const { leader } = tree;
  // It may have moved to another cgroup, where the search does not find it.
  if (leader !== undefined) stop({ pid: leader, started: startTime(leader) ?? "" }, doomed);
  for (;;) {
    const found = await stopNew(tree, doomed);
    if (found > 0 && performance.now() < deadline) continue;
    for (const [pid, started] of doomed) signal({ pid, started }, "SIGKILL");
    if (found === 0) return true;
    if (performance.now() >= deadline) return false;
  }
}

/** Returns the number of processes that it has found and stopped. */
async function stopNew(tree: ExecTree, doomed: Map<number, string>): Promise<number> {
  let found = 0;
  let turn = performance.now();
  for (const pid of processes(tree.cgroup)) {
    if (performance.now() - turn > turnMs) {
      await nextTurn();
      turn = performance.now();
    }
    const lineage = lineageOf(pid);
    if (lineage === undefined || doomed.get(pid) === lineage.started) continue;
    if (!belongs(pid, lineage, { tree, doomed })) continue;
    stop({ pid, started: lineage.started }, doomed);
    found++;
  }
  return found;
}

function belongs(
  pid: number,
  { parent, session }: Lineage,
  { tree, doomed }: { tree: ExecTree; doomed: Map<number, string> },
): boolean {
  const { leader, mark } = tree;
  if (doomed.has(parent) || (leader !== undefined && session === leader)) return true;
  return mark !== undefined && markOf(pid) === mark;
}

function stop(process: { pid: number; started: string }, doomed: Map<number, string>): void {
  doomed.set(process.pid, process.started);
  signal(process, "SIGSTOP");
}

/** Checks the start time in the same turn: pids are reused. */
function signal({ pid, started }: { pid: number; started: string }, name: NodeJS.Signals): void {
  if (startTime(pid) !== started) return;
  try {
    process.kill(pid, name);
  } catch {
    // It has ended.
  }
}
