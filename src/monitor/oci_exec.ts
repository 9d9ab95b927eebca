// Starts execs by an OCI runtime's command line. Their first processes become children of this one, which
// reaps them by pid.
import { constants, fchownSync, fstatSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { CriError } from "../base/errors.ts";
import { step } from "../base/failpoints.ts";
import { trustedJsonValue } from "../base/json.ts";
import type { CgroupPaths } from "../node/cgroup.ts";
import { Descriptor, pipe } from "../sys/descriptor.ts";
import { readKernelFile } from "../sys/file.ts";
import { setOomScoreAdj, startTime } from "../sys/process.ts";
import { markOf, newMark } from "../sys/process_mark.ts";
import { reap } from "../sys/wait.ts";
import type { CapturedStreams, ExecStarter, RunningExec } from "./exec.ts";
import { killTree, type ExecTree } from "./exec_tree.ts";
import { childIn, startedChild } from "./pid_file.ts";
import type { ExecProcess, ExecSubject, StartExecRequest } from "./protocol.ts";
import type { RunRecord, StreamOwner } from "./record_schemas.ts";
import type { ChildStdio, Spawner, SpawnOptions } from "./spawner.ts";

/**
 * Returns the name of the file with an exec's process, which exists until the exec ends. The name contains the mark, by
 * which a later monitor ends what a killed monitor has left.
 */
export function processFileOf(key: string, mark: number | undefined): string {
  return `exec-${key}-${mark ?? "unmarked"}.json`;
}

/** Returns the mark in a name of processFileOf(); [] for any other name. */
export function markOfExec(name: string): [] | [number] {
  const mark = /^exec-.*-(\d{16})\.json$/.exec(name)?.[1];
  return mark === undefined ? [] : [Number(mark)];
}

/** Delay between attempts to kill processes that fork faster than they are killed. */
const killAgainMs = 1_000;

/** args: additional arguments of the runtime's exec. */
type Streams = { stdio: ChildStdio; args: string[] };
/** An exec whose first process is known. */
type Started = ExecTree & { leader: number; processFile: string };
type Waiter = { pid: number; onExit: (end: { exitCode: number } | { error: unknown }) => void };

export class OciExecs implements ExecStarter<Streams> {
  readonly isCopied = false;
  readonly #folder: string;
  readonly #spawner: Spawner;
  readonly #waiting = new Set<Waiter>();

  /** folder: the monitor's. */
  constructor(folder: string, spawner: Spawner) {
    this.#folder = folder;
    this.#spawner = spawner;
  }

  get pids(): number[] {
    return [...this.#waiting].map(({ pid }) => pid);
  }

  /** Checks every exec's process for its exit: called on SIGCHLD. */
  check(): void {
    for (const waiting of this.#waiting) {
      const end = endOf(waiting.pid);
      if (end === undefined) continue;
      this.#waiting.delete(waiting);
      waiting.onExit(end);
    }
  }

  openCaptured(): CapturedStreams<Streams> {
    using opened = new DisposableStack();
    const stdin = opened.use(Descriptor.open("/dev/null", constants.O_RDONLY));
    const [out, err] = [opened.use(pipe()), opened.use(pipe())];
    const readers = { stdout: out.reader.release(), stderr: err.reader.release() };
    const kept = opened.move();
    const streams = { stdio: [stdin, out.writer, err.writer] as const, args: [] };
    return { streams, readers, [Symbol.dispose]: () => kept.dispose() };
  }

  /**
   * Opens the process's ends of the caller's FIFOs. Each is first opened both ways, which never blocks: a
   * caller that has disconnected must not block the monitor.
   */
  openCallers(request: StartExecRequest): Disposable & { streams: Streams } {
    using opened = new DisposableStack();
    const open = (path: string, flags: number) => opened.use(Descriptor.open(path, flags));
    const end = (path: string, flags: number) => {
      if (path !== "") open(path, constants.O_RDWR);
      return open(path || "/dev/null", flags);
    };
    const { O_RDONLY, O_WRONLY } = constants;
    const { stdin, stdout, stderr, console } = request;
    const stdio = [end(stdin, O_RDONLY), end(stdout, O_WRONLY), end(stderr, O_WRONLY)] as const;
    const kept = opened.move();
    const args = console === "" ? [] : ["--console-socket", console];
    return { streams: { stdio, args }, [Symbol.dispose]: () => kept.dispose() };
  }

  async start(
    container: RunRecord,
    request: ExecSubject,
    options: { streams: Streams; timeoutMs: number; signal: AbortSignal },
  ): Promise<RunningExec> {
    const { leader: pid, processFile, ...rest } = await this.#start(container, request, options);
    const tree: ExecTree = { leader: pid, ...rest };
    const exited = Promise.withResolvers<{ exitCode: number }>();
    const onExit: Waiter["onExit"] = (end) => {
      tree.leader = undefined; // its pid may be reused
      rmSync(processFile, { force: true });
      if ("error" in end) exited.reject(end.error);
      else exited.resolve(end);
    };
    exited.promise.catch(() => {}); // awaited by the caller
    const running = { pid, pidStartTime: startTime(pid) ?? "" };
    this.#waiting.add({ pid, onExit });
    this.check();
    return {
      process: running,
      exited: exited.promise,
      kill: () => killAll(tree),
    };
  }

  async #start(
    { runtime, owner, cgroup }: RunRecord,
    request: ExecSubject,
    { streams, timeoutMs, signal }: Omit<SpawnOptions, "mark" | "stdio"> & { streams: Streams },
  ): Promise<Started> {
    using _ = this.#spawner.starting();
    const key = `exec-${request.key}`;
    const mark = newMark();
    const processFile = join(this.#folder, processFileOf(request.key, mark));
    const pidFile = join(this.#folder, `${key}.pid`);
    const files = ["--process", processFile, "--pid-file", pidFile];
    const { stdio, args } = streams;
    try {
      if (owner !== undefined) giveStreams(stdio, owner);
      // At once: the folder is in memory (a tmpfs), where these calls take less time than to hand them over.
      writeFileSync(processFile, request.process, { mode: 0o600 });
      const verb = ["exec", "--detach", ...files, ...args, request.id];
      await step("exec-start", () =>
        this.#spawner.runtime(runtime, verb, { stdio, timeoutMs, signal, mark }),
      );
      const leader = startedChild(pidFile);
      applyOomScoreAdj(leader, request.process);
      return { leader, mark, cgroup, processFile };
    } catch (error) {
      // A runtime that was killed may have started the process, even before it wrote the pid.
      await killTree({ leader: childIn(pidFile), mark, cgroup });
      rmSync(join(this.#folder, `.${key}.pid`), { force: true }); // runc's temporary name
      rmSync(processFile, { force: true });
      throw error;
    } finally {
      rmSync(pidFile, { force: true });
    }
  }
}

/** Gives the exec's streams to the root of its user namespace, as stdio.ts does for the container's. */
function giveStreams(streams: ChildStdio, { uid, gid }: StreamOwner): void {
  for (const { fd } of streams) {
    if (fstatSync(fd).isFIFO()) fchownSync(fd, uid, gid);
  }
}

/** Kills an exec that an earlier monitor has started; it may have ended. */
export async function endExec(exec: ExecProcess, cgroup: CgroupPaths): Promise<void> {
  const { pid, pidStartTime } = exec;
  if (startTime(pid) !== pidStartTime) return;
  if (await killTree({ leader: pid, mark: markOf(pid), cgroup })) return;
  throw new CriError("INTERNAL", `exec (pid ${pid}) forks faster than it can be killed; try again`);
}

/** Kills an exec's processes until none is left, which takes several attempts for a fork bomb. */
async function killAll(tree: ExecTree): Promise<void> {
  while (!(await killTree(tree))) await sleep(killAgainMs);
}

/** Returns an error instead of throwing it, so that check() goes on to the other execs. */
function endOf(pid: number): { exitCode: number } | { error: unknown } | undefined {
  try {
    return reap(pid);
  } catch (error) {
    return { error };
  }
}

/**
 * Sets the oom_score_adj of an exec: runc gives it the one that the container was created with, which an
 * update may have changed since.
 */
function applyOomScoreAdj(pid: number, process: string): void {
  const { oomScoreAdj: wanted } = trustedJsonValue(process) as { oomScoreAdj?: number };
  if (wanted === undefined) return;
  if (readKernelFile(`/proc/${pid}/oom_score_adj`) === `${wanted}\n`) return;
  setOomScoreAdj(pid, wanted, () => true); // a child keeps its pid until it is reaped here
}
