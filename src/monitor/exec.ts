// Runs execs in containers: ExecSync, whose output is captured up to a bound, and execs with the daemon's
// streams. Each is killed with all its descendants at its timeout, or when its caller has disconnected.
import { constants, fchownSync, fstatSync } from "node:fs";
import { readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { CriError } from "../base/errors.ts";
import { jsonValue } from "../base/json.ts";
import type { CgroupPaths } from "../node/cgroup.ts";
import type { RuntimeCommand } from "../node/oci_runtime.ts";
import { Descriptor, pipe } from "../sys/descriptor.ts";
import { readKernelFile } from "../sys/file.ts";
import { setOomScoreAdj, startTime } from "../sys/process.ts";
import { markOf, newMark } from "../sys/process_mark.ts";
import { reap } from "../sys/wait.ts";
import { killTree, type ExecTree } from "./exec_tree.ts";
import type {
  ExecProcess,
  ExecRequest,
  ExecResult,
  ExecSubject,
  StartExecRequest,
} from "./protocol.ts";
import type { StreamOwner } from "./record_schemas.ts";
import type { ChildStdio, Spawner, SpawnOptions } from "./spawner.ts";
import type { LogWorkers } from "./log_workers.ts";

/** Limit for the runtime's start of the process, whatever the caller's limit is. */
const startTimeoutMs = 60_000;
/** Delay between attempts to kill processes that fork faster than they are killed. */
const killAgainMs = 1_000;

type Output = { result: ExecResult; stdout: Uint8Array; stderr: Uint8Array };
type Container = { cgroup: CgroupPaths; runtime: RuntimeCommand; owner?: StreamOwner };
/** An exec whose first process is known. */
type Started = ExecTree & { leader: number };
type Waiter = { pid: number; onExit: (end: { exitCode: number } | { error: unknown }) => void };

export class Execs {
  readonly #folder: string;
  readonly #workers: LogWorkers;
  readonly #spawner: Spawner;
  readonly #waiting = new Set<Waiter>();
  readonly #kills = new Map<string, () => void>();
  /** The ends of execs that start() has started and whose wait() has not returned. */
  readonly #ends = new Map<string, Promise<{ exitCode: number }>>();

  constructor(options: { folder: string; workers: LogWorkers; spawner: Spawner }) {
    this.#folder = options.folder;
    this.#workers = options.workers;
    this.#spawner = options.spawner;
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

  /** Kills an exec whose caller has cancelled it. */
  cancel(key: string): void {
    this.#kills.get(key)?.();
  }

  /** Kills an exec whose caller has disconnected, and forgets its end. */
  abandon(key: string): void {
    this.cancel(key);
    this.#ends.delete(key);
  }

  /** Starts an exec with the caller's streams. */
  async start(container: Container, request: StartExecRequest): Promise<ExecProcess> {
    const { key } = request;
    const cancelled = new AbortController();
    this.#kills.set(key, () => cancelled.abort());
    try {
      using ends = openEnds(request);
      const terminal = request.console === "" ? [] : ["--console-socket", request.console];
      const started = await this.#start(container, request, {
        stdio: ends.stdio,
        args: terminal,
        timeoutMs: startTimeoutMs,
        signal: cancelled.signal,
      });
      const { leader: pid } = started;
      const end = this.#wait({ ...started, key, deadline: Infinity }, cancelled);
      end.catch(() => {}); // wait() rejects as well
      this.#ends.set(key, end);
      return { pid, pidStartTime: startTime(pid) ?? "" };
    } catch (error) {
      this.#kills.delete(key);
      throw error;
    }
  }

  /** @throws CriError NOT_FOUND for an exec that was not started, or whose end was returned before. */
  async wait(key: string): Promise<{ exitCode: number }> {
    const end = this.#ends.get(key);
    if (end === undefined) {
      const message = `exec ${key} was not started, or its end was returned before`;
      throw new CriError("NOT_FOUND", message);
    }
    try {
      return { exitCode: (await end).exitCode };
    } finally {
      this.#ends.delete(key);
    }
  }

  async run(container: Container, request: ExecRequest): Promise<Output> {
    const key = `exec-${request.key}`;
    using pipes = new DisposableStack();
    const [out, err] = [pipes.use(pipe()), pipes.use(pipe())];
    const cancelled = new AbortController();
    this.#kills.set(request.key, () => cancelled.abort()); // before any await: a cancel may follow at once
    const streams = { stdout: out.reader.release(), stderr: err.reader.release() };
    await this.#workers.capture({ id: key, ...streams, maxBytes: request.maxOutputBytes });
    const outputs = [out.writer, err.writer] as const;
    // Collected even when it fails: its streams would stay open.
    const [ran] = await Promise.allSettled([
      this.#runCaptured(container, request, outputs, cancelled),
    ]);
    const { stdout, stderr } = await this.#workers.collect(key);
    if (ran.status === "rejected") throw ran.reason;
    return { result: { ...ran.value, stdoutBytes: stdout.length }, stdout, stderr };
  }

  async #runCaptured(
    container: Container,
    request: ExecRequest,
    outputs: readonly [Descriptor, Descriptor],
    cancelled: AbortController,
  ): Promise<{ exitCode: number; timedOut: boolean }> {
    const { key, timeoutMs } = request;
    const deadline = timeoutMs === 0 ? Infinity : performance.now() + timeoutMs;
    let started: Started;
    try {
      using stdin = Descriptor.open("/dev/null", constants.O_RDONLY);
      started = await this.#start(container, request, {
        stdio: [stdin, ...outputs],
        args: [],
        timeoutMs: Math.min(startTimeoutMs, timeoutMs || startTimeoutMs),
        signal: cancelled.signal,
      });
    } catch (error) {
      this.#kills.delete(key);
      if (performance.now() < deadline) throw error;
      return { exitCode: 137, timedOut: true };
    } finally {
      for (const output of outputs) output.close(); // an open writer would hide their end
    }
    return this.#wait({ ...started, key, deadline }, cancelled);
  }

  async #start(
    { runtime, owner, cgroup }: Container,
    request: ExecSubject,
    options: { args: string[] } & Required<Omit<SpawnOptions, "mark">>,
  ): Promise<Started> {
    using _ = this.#spawner.starting();
    const key = `exec-${request.key}`;
    const processFile = join(this.#folder, `${key}.json`);
    const pidFile = join(this.#folder, `${key}.pid`);
    const files = ["--process", processFile, "--pid-file", pidFile];
    const mark = newMark();
    try {
      if (owner !== undefined) giveStreams(options.stdio, owner);
      await writeFile(processFile, request.process, { mode: 0o600 });
      const verb = ["exec", "--detach", ...files, ...options.args, request.id];
      await this.#spawner.runtime(runtime, verb, { ...options, mark });
      const leader = Number(await readFile(pidFile, "utf8"));
      applyOomScoreAdj(leader, request.process);
      return { leader, mark, cgroup };
    } catch (error) {
      // A runtime that was killed may have started the process, even before it wrote the pid.
      const made = await readFile(pidFile, "utf8").catch(() => "");
      await killTree({ leader: made === "" ? undefined : Number(made), mark, cgroup });
      throw error;
    } finally {
      await rm(processFile, { force: true });
      await rm(pidFile, { force: true });
      await rm(join(this.#folder, `.${key}.pid`), { force: true }); // runc's temporary name
    }
  }

  #wait(
    exec: Started & { key: string; deadline: number },
    cancelled: AbortController,
  ): Promise<{ exitCode: number; timedOut: boolean }> {
    const { leader: pid, key, deadline } = exec;
    const tree: ExecTree = { leader: pid, mark: exec.mark, cgroup: exec.cgroup };
    return new Promise((resolve, reject) => {
      let killed: Promise<void> | undefined;
      let timer: ReturnType<typeof setTimeout> | undefined;
      const kill = () => {
        killed ??= killAll(tree);
        killed.catch(() => {}); // the exec's promise rejects as well
      };
      this.#kills.set(key, kill);
      if (deadline !== Infinity)
        timer = setTimeout(kill, Math.max(0, deadline - performance.now()));
      const onExit: Waiter["onExit"] = (end) => {
        clearTimeout(timer);
        this.#kills.delete(key);
        tree.leader = undefined; // its pid may be reused
        if ("error" in end) reject(end.error);
        else if (killed === undefined) resolve({ exitCode: end.exitCode, timedOut: false });
        else killed.then(() => resolve({ exitCode: end.exitCode, timedOut: true }), reject);
      };
      this.#waiting.add({ pid, onExit });
      if (cancelled.signal.aborted) kill(); // cancelled while the runtime was ending
      this.check();
    });
  }
}

/**
 * Opens the process's ends of the caller's FIFOs. Each is first opened both ways, which never blocks: a
 * caller that has disconnected must not block the monitor.
 */
function openEnds(request: StartExecRequest): Disposable & { stdio: ChildStdio } {
  using opened = new DisposableStack();
  const open = (path: string, flags: number) => opened.use(Descriptor.open(path, flags));
  const end = (path: string, flags: number) => {
    if (path !== "") open(path, constants.O_RDWR);
    return open(path || "/dev/null", flags);
  };
  const { O_RDONLY, O_WRONLY } = constants;
  const { stdin, stdout, stderr } = request;
  const stdio = [end(stdin, O_RDONLY), end(stdout, O_WRONLY), end(stderr, O_WRONLY)] as const;
  const kept = opened.move();
  return { stdio, [Symbol.dispose]: () => kept.dispose() };
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
  const { oomScoreAdj: wanted } = jsonValue(process) as { oomScoreAdj?: number };
  if (wanted === undefined) return;
  if (readKernelFile(`/proc/${pid}/oom_score_adj`) === `${wanted}\n`) return;
  setOomScoreAdj(pid, wanted, () => true); // a child keeps its pid until it is reaped here
}
