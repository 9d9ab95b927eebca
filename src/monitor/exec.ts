// ExecSync: a process in a running container, its output kept up to a bound, its whole tree killed
// when its time is over.
import { closeSync, constants, openSync } from "node:fs";
import { readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { CriError } from "../base/errors.ts";
import { processes, type CgroupPaths } from "../node/cgroup.ts";
import type { RuntimeCommand } from "../node/runtime.ts";
import { pipe } from "../sys/descriptor.ts";
import { lineageOf } from "../sys/process.ts";
import { reap } from "../sys/wait.ts";
import type { ExecRequest, ExecResult } from "./protocol.ts";
import type { Spawner } from "./spawner.ts";
import type { LogWorkers } from "./worker_client.ts";

/** Starting the process is the runtime's work, and has a deadline whatever the caller's limit is. */
const startTimeoutMs = 60_000;

type Output = { result: ExecResult; stdout: Uint8Array; stderr: Uint8Array };
type Container = { cgroup: CgroupPaths; runtime: RuntimeCommand };
type Waiting = { pid: number; onExit: (end: { exitCode: number } | { error: unknown }) => void };

export class Execs {
  readonly #folder: string;
  readonly #workers: LogWorkers;
  readonly #spawner: Spawner;
  readonly #waiting = new Set<Waiting>();
  readonly #kills = new Map<string, () => void>();

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

  async run(container: Container, request: ExecRequest): Promise<Output> {
    const key = `exec-${request.key}`;
    const deadline =
      request.timeoutMs === 0 ? Number.POSITIVE_INFINITY : performance.now() + request.timeoutMs;
    const [out, err] = [pipe(), pipe()];
    const { maxOutputBytes: maxBytes } = request;
    const fds = { stdout: out.readFd, stderr: err.readFd };
    await this.#workers.capture({ id: key, ...fds, maxBytes });
    let pid: number;
    const cancelled = new AbortController();
    this.#kills.set(request.key, () => cancelled.abort());
    try {
      const outputs: [number, number] = [out.writeFd, err.writeFd];
      pid = await this.#start(container.runtime, request, { outputs, signal: cancelled.signal });
    } catch (error) {
      this.#kills.delete(request.key);
      const { stdout, stderr } = await this.#workers.collect(key);
      if (performance.now() < deadline) throw error;
      const result = { exitCode: 137, timedOut: true, stdoutBytes: stdout.length };
      return { result, stdout, stderr };
    }
    const end = await this.#wait(
      { pid, cgroup: container.cgroup, key: request.key, deadline },
      cancelled,
    );
    const { stdout, stderr } = await this.#workers.collect(key);
    return { result: { ...end, stdoutBytes: stdout.length }, stdout, stderr };
  }

  async #start(
    runtime: RuntimeCommand,
    request: ExecRequest,
    { outputs, signal }: { outputs: [number, number]; signal: AbortSignal },
  ): Promise<number> {
    using _ = this.#spawner.starting();
    const key = `exec-${request.key}`;
    const timeoutMs = Math.min(startTimeoutMs, request.timeoutMs || startTimeoutMs);
    const processFile = join(this.#folder, `${key}.json`);
    const pidFile = join(this.#folder, `${key}.pid`);
    const stdin = openSync("/dev/null", constants.O_RDONLY);
    try {
      await writeFile(processFile, request.process, { mode: 0o600 });
      const verb = [
        "exec",
        "--detach",
        "--process",
        processFile,
        "--pid-file",
        pidFile,
        request.id,
      ];
      await this.#spawner.runtime(runtime, verb, {
        timeoutMs,
        signal,
        stdio: [stdin, ...outputs],
      });
      return Number(await readFile(pidFile, "utf8"));
    } finally {
      for (const fd of [stdin, ...outputs]) closeSync(fd);
      await rm(processFile, { force: true });
      await rm(pidFile, { force: true });
      await rm(join(this.#folder, `.${key}.pid`), { force: true }); // runc's, before it is renamed
    }
  }

  #wait(
    exec: { pid: number; cgroup: CgroupPaths; key: string; deadline: number },
    cancelled: AbortController,
  ): Promise<{ exitCode: number; timedOut: boolean }> {
    const { pid, cgroup, key, deadline } = exec;
    return new Promise((resolve, reject) => {
      let timedOut = false;
      let timer: ReturnType<typeof setTimeout> | undefined;
      const kill = () => {
        timedOut = true;
        killTree(pid, cgroup);
      };
      this.#kills.set(key, kill);
      if (deadline !== Number.POSITIVE_INFINITY) {
        timer = setTimeout(kill, Math.max(0, deadline - performance.now()));
      }
      const onExit: Waiting["onExit"] = (end) => {
        clearTimeout(timer);
        this.#kills.delete(key);
        if ("error" in end) reject(end.error);
        else resolve({ exitCode: end.exitCode, timedOut });
      };
      this.#waiting.add({ pid, onExit });
      if (cancelled.signal.aborted) kill(); // while the runtime was ending
      this.check();
    });
  }
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
 * Kills an exec's process and what came of it: children, and orphans by their session, which the
 * runtime made for the exec. Stopping first, and again until nothing new is found, leaves no gap for
 * a fork. The container's other processes are left alone.
 */
function killTree(pid: number, cgroup: CgroupPaths): void {
  const doomed = new Set([pid]);
  for (let round = 0; round < 32; round++) {
    const before = doomed.size;
    for (const member of processes(cgroup)) {
      const lineage = lineageOf(member);
      if (lineage === undefined) continue; // it has ended
      if (lineage.session === pid || doomed.has(lineage.parent)) doomed.add(member);
    }
    for (const victim of doomed) signalIfThere(victim, round === 0 ? "SIGSTOP" : "SIGKILL");
    if (round > 0 && doomed.size === before) return;
  }
  throw new CriError("INTERNAL", `exec (pid ${pid}) forks faster than it can be killed`);
}

function signalIfThere(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch {
    // It ended by itself.
  }
}
