// Further processes in a running container, each killed with its whole tree when its time is over or
// nobody waits for it: ExecSync, whose output is kept up to a bound, and those whose streams are the
// daemon's.
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
  StartExecRequest,
  StreamOwner,
} from "./protocol.ts";
import type { ChildStdio, Spawner, SpawnOptions } from "./spawner.ts";
import type { LogWorkers } from "./worker_client.ts";

/** Starting the process is the runtime's work, and has a deadline whatever the caller's limit is. */
const startTimeoutMs = 60_000;
/** What forks faster than it is killed is killed again after this. */
const killAgainMs = 1_000;

type Output = { result: ExecResult; stdout: Uint8Array; stderr: Uint8Array };
type Container = { cgroup: CgroupPaths; runtime: RuntimeCommand; owner?: StreamOwner };
/** An exec whose first process is known. */
type Started = ExecTree & { leader: number };
type Waiting = { pid: number; onExit: (end: { exitCode: number } | { error: unknown }) => void };

export class Execs {
  readonly #folder: string;
  readonly #workers: LogWorkers;
  readonly #spawner: Spawner;
  readonly #waiting = new Set<Waiting>();
  readonly #kills = new Map<string, () => void>();
  /** Of those that were started and not waited for to their end. */
  readonly #ends = new Map<string, Promise<{ exitCode: number }>>();

  constructor(options: { folder: string; workers: LogWorkers; spawner: Spawner }) {
    this.#folder = options.folder;
    this.#workers = options.workers;
    this.#spawner = options.spawner;
  }

  get pids(): number[] {
    return [...this.#waiting].map(({ pid }) => pid);
  }

  /** Looks at every exec's process: called on SIGCHLD. */
  check(): void {
    for (const waiting of this.#waiting) {
      const end = endOf(waiting.pid);
      if (end === undefined) continue;
      this.#waiting.delete(waiting);
      waiting.onExit(end);
    }
  }

  /** Kills an exec of which nobody waits for the end any more. */
  cancel(key: string): void {
    this.#kills.get(key)?.();
  }

  /** Nobody will wait for it. */
  abandon(key: string): void {
    this.cancel(key);
    this.#ends.delete(key);
  }

  /** Starts a process whose streams are the caller's. */
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
      const pid = started.leader;
      const end = this.#wait({ ...started, key, deadline: Infinity }, cancelled);
      end.catch(() => {}); // told to who waits
      this.#ends.set(key, end);
      return { pid, pidStartTime: startTime(pid) ?? "" };
    } catch (error) {
      this.#kills.delete(key);
      throw error;
    }
  }

  /** @throws CriError NOT_FOUND for one that was not started, or was waited for. */
  async wait(key: string): Promise<{ exitCode: number }> {
    const end = this.#ends.get(key);
    if (end === undefined) throw new CriError("NOT_FOUND", `no exec ${key} is waited for`);
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
    this.#kills.set(request.key, () => cancelled.abort()); // at once: its cancelling may come next
    const streams = { stdout: out.reader.release(), stderr: err.reader.release() };
    await this.#workers.capture({ id: key, ...streams, maxBytes: request.maxOutputBytes });
    const outputs = [out.writer, err.writer] as const;
    // Collected however it ends, or its streams would stay open.
    const [ran] = await Promise.allSettled([
      this.#runCaptured(container, request, { outputs, cancelled }),
    ]);
    const { stdout, stderr } = await this.#workers.collect(key);
    if (ran.status === "rejected") throw ran.reason;
    return { result: { ...ran.value, stdoutBytes: stdout.length }, stdout, stderr };
  }

  async #runCaptured(
    container: Container,
    request: ExecRequest,
    {
      outputs,
      cancelled,
    }: { outputs: readonly [Descriptor, Descriptor]; cancelled: AbortController },
  ): Promise<{ exitCode: number; timedOut: boolean }> {
    const { key, timeoutMs } = request;
    const deadline = timeoutMs === 0 ? Number.POSITIVE_INFINITY : performance.now() + timeoutMs;
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
      for (const output of outputs) output.close(); // or their end would never be read
    }
    return this.#wait({ ...started, key, deadline }, cancelled);
  }

  async #start(
    { runtime, owner, cgroup }: Container,
    request: { id: string; key: string; process: string },
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
      takeOomScoreAdj(leader, request.process);
      return { leader, mark, cgroup };
    } catch (error) {
      // The runtime may have been killed when its work was done, also before it wrote the pid.
      const made = await readFile(pidFile, "utf8").catch(() => "");
      await killTree({ leader: made === "" ? undefined : Number(made), mark, cgroup });
      throw error;
    } finally {
      await rm(processFile, { force: true });
      await rm(pidFile, { force: true });
      await rm(join(this.#folder, `.${key}.pid`), { force: true }); // runc's, before it is renamed
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
        killed ??= killAgain(tree);
        killed.catch(() => {}); // who waits for the exec gets it
      };
      this.#kills.set(key, kill);
      if (deadline !== Number.POSITIVE_INFINITY) {
        timer = setTimeout(kill, Math.max(0, deadline - performance.now()));
      }
      const onExit: Waiting["onExit"] = (end) => {
        clearTimeout(timer);
        this.#kills.delete(key);
        tree.leader = undefined; // its pid is somebody else's soon
        if ("error" in end) reject(end.error);
        else if (killed === undefined) resolve({ exitCode: end.exitCode, timedOut: false });
        else killed.then(() => resolve({ exitCode: end.exitCode, timedOut: true }), reject);
      };
      this.#waiting.add({ pid, onExit });
      if (cancelled.signal.aborted) kill(); // while the runtime was ending
      this.check();
    });
  }
}

/**
 * The process's ends of the caller's FIFOs. Each is first opened both ways, which never waits: a caller
 * that has gone meanwhile must not hold up the monitor.
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

/** As stdio.ts does it for the container's own. */
function giveStreams(streams: ChildStdio, { uid, gid }: StreamOwner): void {
  for (const { fd } of streams) {
    if (fstatSync(fd).isFIFO()) fchownSync(fd, uid, gid);
  }
}

/** Ends an exec that an earlier monitor has started; it may have ended. */
export async function endExec(exec: ExecProcess, cgroup: CgroupPaths): Promise<void> {
  const { pid, pidStartTime } = exec;
  if (startTime(pid) !== pidStartTime) return;
  if (await killTree({ leader: pid, mark: markOf(pid), cgroup })) return;
  throw new CriError("INTERNAL", `exec (pid ${pid}) forks faster than it can be killed; try again`);
}

/** Kills an exec's processes until none is left, which a fork bomb may put off. */
async function killAgain(tree: ExecTree): Promise<void> {
  while (!(await killTree(tree))) await sleep(killAgainMs);
}

/** One exec whose end cannot be known must not hide the ends of the others. */
function endOf(pid: number): { exitCode: number } | { error: unknown } | undefined {
  try {
    return reap(pid);
  } catch (error) {
    return { error };
  }
}

/**
 * runc gives every exec the oom_score_adj that the container was created with: one that an update has
 * changed since is set as soon as the process is known.
 */
function takeOomScoreAdj(pid: number, process: string): void {
  const { oomScoreAdj: wanted } = jsonValue(process) as { oomScoreAdj?: number };
  if (wanted === undefined) return;
  if (readKernelFile(`/proc/${pid}/oom_score_adj`) === `${wanted}\n`) return;
  setOomScoreAdj(pid, wanted, () => true); // a child: its number stays its own until it is reaped here
}
