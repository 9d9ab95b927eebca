// Ends the programs that a killed daemon was waiting for (a CNI plugin, a verifier, a helper), with their
// descendants: SIGKILL ends no child, and one that hangs would stay for ever.
//
// Decision: while a program runs, a file names the mark that it and its descendants have (process_mark.ts). A
// process that has reused its pid has another mark, and what a program leaves behind after its exit on purpose,
// such as the dnsmasq of a CNI plugin, is in no file any more. PR_SET_PDEATHSIG is weaker: a plugin's own
// children do not inherit it, and to set it takes another program between daemon and plugin.
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { step } from "../base/failpoints.ts";
import type { Log } from "../base/log.ts";
import { recordChildren } from "./children.ts";
import { hasEnded, kill, killGroup, processIds, processName } from "./process.ts";
import { markOf, newMark, withMark } from "./process_mark.ts";

/** Time to finish, from the next start on: a plugin that is killed while it writes a lease would lose the address. */
const graceMs = 1_000;
/** Time for killed processes to end; one that waits in the kernel for a disk does not. */
const killedMs = 5_000;
const lookEveryMs = 20;

/** Records every program that this process starts from now on, in a folder of its own. */
export function recordPrograms(folder: string): void {
  recordChildren((program, start) => {
    const mark = newMark();
    const file = join(folder, String(mark));
    if (mark === undefined || !write(file, program)) return start();
    const forget = () => rmSync(file, { force: true });
    try {
      const child = withMark(mark, start);
      if (child.pid === undefined) forget();
      else child.once("exit", forget);
      return child;
    } catch (error) {
      forget();
      throw error;
    }
  });
}

/** Best effort: a program runs without a record where the state folder is full or was emptied. */
function write(file: string, program: string): boolean {
  try {
    writeFileSync(file, program, { mode: 0o600 });
    return true;
  } catch {
    rmSync(file, { force: true }); // a full disk may have taken its name, but not its content
    return false;
  }
}

/** Ends the programs recorded in the folder, which it makes if missing, except those that SIGKILL does not end. */
export async function endLeftPrograms(folder: string, log: Log): Promise<void> {
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  const left = recordsIn(folder);
  if (left.size === 0) return;
  const programOf = (pid: number) => left.get(markOf(pid) ?? 0);
  await untilGone(programOf, graceMs, () => {});
  const kill = () => killLeft(programOf, { log, timeoutMs: killedMs });
  const stuck = await step("left-programs-kill", kill);
  const kept = new Set(stuck.map((pid) => markOf(pid))); // the next start tries them again
  await step("left-programs-forget", () => {
    for (const mark of left.keys()) {
      if (!kept.has(mark)) rmSync(join(folder, String(mark)), { force: true });
    }
  });
}

/** By mark. */
function recordsIn(folder: string): Map<number, string> {
  const names = readdirSync(folder).filter((name) => /^\d{16}$/.test(name));
  return new Map(names.map((name) => [Number(name), readFileSync(join(folder, name), "utf8")]));
}

/** Returns what a left process runs; undefined: it is none. */
type ProgramOf = (pid: number) => string | undefined;

/** Kills left processes, and the groups that they lead, until none is left; returns those that SIGKILL does not end. */
export async function killLeft(
  programOf: ProgramOf,
  { log, timeoutMs }: { log: Log; timeoutMs: number },
): Promise<number[]> {
  const killed = new Set<number>();
  const stuck = await untilGone(programOf, timeoutMs, (pid, program) => {
    killGroup(pid);
    kill(pid);
    if (killed.has(pid)) return;
    killed.add(pid);
    log.warn("killed a process whose caller had been killed", { pid, program });
  });
  for (const pid of stuck)
    log.error("a left process cannot be killed", { pid, is: processName(pid) });
  return stuck;
}

/** Calls `act` for each left process, until none is left or the time is over; returns those that are. */
async function untilGone(
  programOf: ProgramOf,
  timeoutMs: number,
  act: (pid: number, program: string) => void,
): Promise<number[]> {
  const end = performance.now() + timeoutMs;
  for (;;) {
    const found: number[] = [];
    for (const pid of processIds()) {
      const program = programOf(pid);
      if (program === undefined || hasEnded(pid)) continue;
      act(pid, program); // in the same turn: pids are reused
      found.push(pid);
    }
    if (found.length === 0 || performance.now() > end) return found;
    await sleep(lookEveryMs);
  }
}
