// Reads and changes other processes: signals, priority, OOM score, and their state in /proc.
import { constants, readdirSync, readFileSync, readlinkSync, readSync, writeSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { getPriority } from "node:os";
import { errnoOf } from "../base/errors.ts";
import { Descriptor } from "./descriptor.ts";
import { kernelFigure, readKernelFile, writeKernelFile } from "./file.ts";
import { check } from "./libc.ts";
import { uptimeMs } from "./uptime.ts";
import { waitStatus } from "./wait.ts";

/** Sends SIGKILL to the process group of a child; it may have ended. */
export function killGroup(pid: number): void {
  kill(-pid);
}

/** Sends a signal to a process, or to the group -pid; it may have ended. */
export function kill(pid: number, signal: NodeJS.Signals = "SIGKILL"): void {
  try {
    process.kill(pid, signal);
  } catch (error) {
    if (errnoOf(error) !== "ESRCH") throw error;
  }
}

/** Returns the ids of all processes in this process's view of /proc. */
export function processIds(): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map(Number);
}

/**
 * Returns the ids of the children of all threads of a process; none once it has ended. The engine's threads come
 * and go, and the children of one that has ended belong to another thread.
 */
export function childrenOf(pid: number | "self"): number[] {
  return threadsOf(pid).flatMap((thread) => {
    const children = readKernelFile(`/proc/${pid}/task/${thread}/children`) ?? "";
    return children.split(" ").filter(Boolean).map(Number);
  });
}

function threadsOf(pid: number | "self"): string[] {
  try {
    return readdirSync(`/proc/${pid}/task`);
  } catch (error) {
    if (["ENOENT", "ESRCH"].includes(errnoOf(error) ?? "")) return [];
    throw error;
  }
}

const PRIO_PROCESS = 0;

/**
 * Raises the niceness (nice(1)) of a process that has just started; a higher one is kept. Best effort, like
 * offerToOomKiller: an error (EMFILE) would leave the process running without its starter's supervision.
 */
export function giveWay(pid: number, niceness: number): void {
  try {
    // Each thread has its own niceness, which the threads that it creates inherit.
    const value = Math.max(niceness, getPriority(pid));
    for (const thread of readdirSync(`/proc/${pid}/task`)) {
      check("setpriority", `of thread ${thread} of ${pid}`, PRIO_PROCESS, Number(thread), value);
    }
  } catch {
    // It has ended, or no descriptor is left.
  }
}

const SCHED_OTHER = 0;
const SCHED_RESET_ON_FORK = 0x4000_0000;
/** Nine times the usual share of a processor, and the earlier turn. */
const aheadNiceness = -10;

/**
 * Lets this thread run before the programs that it starts. Where a node starts dozens of pods at once, an event loop
 * of equal priority waits for a processor most of the time, and with it every call; a runtime of many threads does
 * not. Best effort: it needs CAP_SYS_NICE, and musl has no sched_setscheduler. A niceness that the node's
 * administrator has set stays.
 *
 * Children, and so all containers, have the usual niceness of 0 (sched(7), SCHED_RESET_ON_FORK). Where the kernel
 * groups processes by session ("The autogroup feature"), only the group's niceness counts; children have sessions
 * of their own.
 */
export function runBeforeChildren(): void {
  try {
    if (getPriority() !== 0) return;
    const parameters = new Uint8Array(4); // struct sched_param: priority 0
    const policy = SCHED_OTHER | SCHED_RESET_ON_FORK;
    check("sched_setscheduler", "of this thread", 0, policy, parameters);
    check("setpriority", "of this thread", PRIO_PROCESS, 0, aheadNiceness);
    if (lineageOf(process.pid)?.session !== process.pid) return; // the session of a terminal
    writeKernelFile("/proc/self/autogroup", String(aheadNiceness));
  } catch {
    // Best effort: without this the process only answers later.
  }
}

/** Gives this process's threads of these names the niceness of the calling one; best effort, as above. */
export function prioritizeThreads(names: readonly string[]): void {
  try {
    const niceness = getPriority();
    for (const thread of readdirSync("/proc/self/task")) {
      const name = readKernelFile(`/proc/self/task/${thread}/comm`)?.trimEnd() ?? "";
      if (!names.includes(name)) continue;
      check("setpriority", `of thread ${thread}`, PRIO_PROCESS, Number(thread), niceness);
    }
  } catch {
    // A thread has ended meanwhile, or this process may not.
  }
}

/** Makes a process the OOM killer's first choice, best effort; otherwise it inherits the daemon's protection. */
export function offerToOomKiller(pid: number): void {
  try {
    writeKernelFile(`/proc/${pid}/oom_score_adj`, "1000");
  } catch {
    // It has ended, /proc is read-only, or no descriptor is left.
  }
}

/**
 * Sets a process's oom_score_adj, as far as this process may lower it. isIt: called with the process's file
 * open, so that the pid cannot be reused after the check.
 * @returns the resulting value; undefined: it has ended.
 */
export function setOomScoreAdj(
  pid: number,
  value: number,
  isIt: () => boolean,
): number | undefined {
  try {
    using file = Descriptor.open(`/proc/${pid}/oom_score_adj`, constants.O_RDWR);
    if (!isIt()) return undefined;
    try {
      writeSync(file.fd, String(value));
    } catch (error) {
      if (!["EACCES", "EPERM"].includes(errnoOf(error) ?? "")) throw error;
    }
    const text = Buffer.alloc(16);
    return Number(text.toString("latin1", 0, readSync(file.fd, text, 0, text.length, 0)));
  } catch (error) {
    if (["ESRCH", "ENOENT"].includes(errnoOf(error) ?? "")) return undefined;
    throw error;
  }
}

/** Makes this process the leader of a new process group in its session. */
export function leadGroup(): void {
  check("setpgid", "of this process", 0, 0);
}

/** Names this process in ps(1) and in the kernel's messages about the OOM killer; best effort. */
export function nameProcess(name: string): void {
  try {
    writeKernelFile("/proc/self/comm", name);
  } catch {
    // /proc is read-only, or no descriptor is left.
  }
}

/** Returns a process's start time in clock ticks since boot: identifies one process together with the pid. */
export function startTime(pid: number): string | undefined {
  return startTimeIn(`/proc/${pid}`);
}

/** The same by the process's folder in /proc. */
export function startTimeIn(folder: string): string | undefined {
  return statFieldsIn(folder)?.[startTimeField];
}

/** Returns a process's age, by a clock that is never set; undefined: there is no such process. */
export function processAgeMs(pid: number): number | undefined {
  const ticks = startTime(pid);
  return ticks === undefined ? undefined : uptimeMs() - ticksToMs(Number(ticks));
}

/** started: its startTime(). */
export type Lineage = { parent: number; session: number; started: string };

/** Returns parent, session and start time of a process; undefined: there is no such process. */
export function lineageOf(pid: number): Lineage | undefined {
  const fields = statFields(pid);
  if (fields === undefined) return undefined;
  return {
    parent: Number(fields[parentField]),
    session: Number(fields[sessionField]),
    started: fields[startTimeField] ?? "",
  };
}

// Indexes of fields 3, 4, 6, 14, 15, 22 and 52 of /proc/PID/stat (proc(5)): 0 is field 3, the one after the command.
const stateField = 0;
const parentField = 1;
const sessionField = 3;
const userTimeField = 11;
const systemTimeField = 12;
const startTimeField = 19;
const exitCodeField = 49;
/** USER_HZ, the unit of proc(5)'s times: a constant of the kernel's interface on amd64 and arm64. */
const ticksPerSecond = 100;

function ticksToMs(ticks: number): number {
  return ticks * (1000 / ticksPerSecond);
}

/** startedMs: since boot. */
export type ProcessTimes = { state: string; cpuMs: number; startedMs: number };

/** Returns state and times of a process by the text of its /proc/PID/stat. */
export function processTimes(stat: string): ProcessTimes {
  const fields = fieldsOf(stat);
  const ticks = (field: number) => Number(fields[field]);
  return {
    state: fields[stateField] ?? "",
    cpuMs: ticksToMs(ticks(userTimeField) + ticks(systemTimeField)),
    startedMs: ticksToMs(ticks(startTimeField)),
  };
}

/**
 * Returns the state of a process that is another process's child. While the process is a zombie, its exit code can
 * be read (128 + n for signal n); "gone": it was reaped.
 */
export function processState(
  pid: number,
  started: string,
): "running" | "gone" | { exitCode: number } {
  const fields = statFields(pid);
  if (fields?.[startTimeField] !== started) return "gone";
  if (fields[stateField] !== "Z") return "running";
  return waitStatus(Number(fields[exitCodeField]));
}

/** Returns a process's resident memory, shared included, and its address space, in bytes; undefined: it has ended. */
export function memoryOf(pid: number): { resident: number; virtual: number } | undefined {
  const text = readKernelFile(`/proc/${pid}/status`);
  const [residentKib, virtualKib] = ["VmRSS", "VmSize"].map((name) => kernelFigure(text, name));
  if (residentKib === undefined || virtualKib === undefined) return undefined;
  return { resident: residentKib * 1024, virtual: virtualKib * 1024 };
}

/** Infinity: unlimited. */
export type ProcessLimit = { soft: number; hard: number };

/** Returns a limit of a process by its name in /proc/PID/limits (proc(5)); undefined: no such process. */
export function processLimit(
  pid: number | "self",
  name: "open files" | "realtime timeout" | "stack size",
): ProcessLimit | undefined {
  const limits = readKernelFile(`/proc/${pid}/limits`) ?? "";
  const [, soft, hard] = new RegExp(`^Max ${name} +(\\w+) +(\\w+) `, "m").exec(limits) ?? [];
  if (soft === undefined || hard === undefined) return undefined;
  const valueOf = (text: string) => (text === "unlimited" ? Infinity : Number(text));
  return { soft: valueOf(soft), hard: valueOf(hard) };
}

/** Returns a soft limit of a process; undefined: none, or no such process. */
export function softLimit(
  pid: number | "self",
  name: "open files" | "realtime timeout" | "stack size",
): number | undefined {
  const soft = processLimit(pid, name)?.soft;
  return soft === Infinity ? undefined : soft;
}

/** SIGKILL and SIGSTOP, which a process of another pid namespace can always send. */
const unhandled = [9, 19];
/** SIGCHLD, SIGCONT, SIGURG and SIGWINCH, which do nothing to a running process without a handler (signal(7)). */
const ignoredByDefault = [17, 18, 23, 28];

/**
 * True if a signal has an effect now on the process with this /proc/PID/status (proc(5)). Without a handler the
 * kernel drops any signal for the first process of a pid namespace, and for every process those that do nothing by
 * default. A blocked signal waits for the process, which may fetch it (sigwait(3), signalfd(2)), as tini does.
 */
export function takesSignal(status: string, signal: number): boolean {
  const isIn = (name: string) => {
    const mask = new RegExp(`^${name}:\\s*([0-9a-f]+)$`, "m").exec(status)?.[1] ?? "0";
    return ((BigInt(`0x${mask}`) >> BigInt(signal - 1)) & 1n) === 1n;
  };
  if (unhandled.includes(signal) || isIn("SigCgt") || isIn("SigBlk")) return true;
  // Before Linux 4.1 there is no NSpid: it could be the first process.
  const isFirst = /^NSpid:.*\t1$/m.test(status) || !/^NSpid:/m.test(status);
  return !isFirst && !ignoredByDefault.includes(signal);
}

/** Time, in ms, for a new process to execute its program and install signal handlers. */
const handlersMs = 2_000;

/**
 * Waits until a signal would have an effect on a new process: a container that is stopped just after its start
 * would never notice it. Waits only while the process is younger than 2 s, and not after the signal `end`.
 */
export async function untilHandled(pid: number, signal: number, end: AbortSignal): Promise<void> {
  const ageMs = processAgeMs(pid) ?? handlersMs;
  const endMs = performance.now() + handlersMs - ageMs;
  while (performance.now() < endMs && !end.aborted) {
    const status = readKernelFile(`/proc/${pid}/status`);
    if (status === undefined || takesSignal(status, signal)) return;
    await sleep(10);
  }
}

/** How long, in ms, a runtime's init may take from the runtime's start command to its execve(2). */
const execMs = 200;

/**
 * Calls `start` and waits until the process executes another file. A runtime's start returns a moment
 * earlier, and a signal in that moment would be handled by the runtime's init and lost.
 */
export async function executes(
  pid: number,
  start: () => Promise<void>,
  withinMs = execMs,
): Promise<void> {
  const before = executableOf(pid);
  await start();
  if (before === undefined) return;
  const end = performance.now() + withinMs;
  while (executableOf(pid) === before && performance.now() < end) await sleep(1);
}

/**
 * Returns the path of a process's executable, which ends in " (deleted)" once the file is removed or replaced;
 * undefined: the process has ended, or belongs to another user.
 */
export function executableOf(pid: number): string | undefined {
  try {
    return readlinkSync(`/proc/${pid}/exe`);
  } catch {
    return undefined;
  }
}

/** Returns command and state of a process, "sleep, state D", for messages. */
export function processName(pid: number): string {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    const end = stat.lastIndexOf(")");
    return `${stat.slice(stat.indexOf("(") + 1, end)}, state ${stat[end + 2]}`;
  } catch {
    return "gone";
  }
}

export function isZombie(pid: number): boolean {
  return statFields(pid)?.[stateField] === "Z";
}

/** True once a process is a zombie, or reaped. */
export function hasEnded(pid: number): boolean {
  const state = statFields(pid)?.[stateField];
  return state === undefined || state === "Z";
}

function statFields(pid: number): string[] | undefined {
  return statFieldsIn(`/proc/${pid}`);
}

function statFieldsIn(folder: string): string[] | undefined {
  try {
    return fieldsOf(readFileSync(`${folder}/stat`, "utf8"));
  } catch {
    return undefined;
  }
}

/** The command, in parentheses, may have spaces and parentheses: the fields begin after the last one. */
function fieldsOf(stat: string): string[] {
  return stat
    .slice(stat.lastIndexOf(")") + 2)
    .trimEnd()
    .split(" ");
}
