// Runs the OCI runtime. The container inherits its standard streams, so these are files and FIFOs only, and
// the runtime writes its messages to a log file.
import { randomBytes } from "node:crypto";
import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { throwIfAborted } from "../base/abort.ts";
import { CriError } from "../base/errors.ts";
import type { CgroupAttachLock } from "../node/cgroup_attach.ts";
import { runtimeArgv, runtimeError, type RuntimeCommand } from "../node/oci_runtime.ts";
import { spawn } from "../sys/children.ts";
import type { Descriptor } from "../sys/descriptor.ts";
import { isAlmostFull } from "../sys/free_space.ts";
import { processesWith } from "../sys/command_lines.ts";
import { childrenOf, kill, killGroup, startTime } from "../sys/process.ts";
import { withMark } from "../sys/process_mark.ts";
import { cannotRun, superviseGroup } from "../sys/supervise.ts";

export type SpawnOptions = {
  timeoutMs: number;
  /** Ends the call before its timeout. */
  signal?: AbortSignal | undefined;
  /** Marks the runtime's process and all its descendants (sys/process_mark.ts). */
  mark?: number;
  /** /dev/null by default. */
  stdio?: ChildStdio;
};

/**
 * runc is a Go program that lives for some milliseconds: one thread of Go code and no garbage collection, within
 * bounds, save an eighth of its CPU time. crun ignores both.
 */
const goOptions = { GOMAXPROCS: "1", GOGC: "off", GOMEMLIMIT: "64MiB" };

/** How the names of the runtime's log files begin, in the monitor's folder. */
export const runtimeLogs = "runtime-";

/** stdin, stdout and stderr of a runtime call; they stay the caller's. */
export type ChildStdio = readonly [Descriptor, Descriptor, Descriptor];

type Child = { pid: number; started: string };

function descendantsOf(pid: number): Child[] {
  return childrenOf(pid).flatMap((child) => {
    const started = startTime(child);
    return started === undefined ? [] : [{ pid: child, started }, ...descendantsOf(child)];
  });
}

export class Spawner {
  readonly #folder: string;
  readonly #attachLock: CgroupAttachLock;
  readonly #env = { ...goOptions, ...process.env };
  /** When each start under way began, by performance.now(), the oldest first. */
  readonly #starts = new Map<symbol, number>();

  constructor(folder: string, attachLock: CgroupAttachLock) {
    this.#folder = folder;
    this.#attachLock = attachLock;
  }

  get busy(): boolean {
    return this.#starts.size > 0;
  }

  /** Since this time, processes may have been created whose pids are not known yet; undefined: none. */
  get startingSince(): number | undefined {
    return this.#starts.values().next().value;
  }

  /** Announces a new process; its pid must be known before the disposal. */
  starting(): Disposable {
    const start = Symbol();
    this.#starts.set(start, performance.now());
    return {
      [Symbol.dispose]: () => {
        this.#starts.delete(start);
      },
    };
  }

  /**
   * Runs one verb of the runtime to its end.
   * @throws CriError with the runtime's own message; DEADLINE_EXCEEDED after timeoutMs.
   */
  async runtime(runtime: RuntimeCommand, verb: string[], options: SpawnOptions): Promise<void> {
    const logFile = join(this.#folder, `${runtimeLogs}${randomBytes(6).toString("hex")}.log`);
    const argv = runtimeArgv(runtime, logFile, verb);
    using _ = this.starting();
    try {
      const exitCode = await this.#run(argv, verb[0]!, options);
      if (exitCode === 0) return;
      const reported = (await runtimeError(logFile)) ?? `exit status ${exitCode}`;
      // A full disk: the runtime does not always report it, and removes what it wrote.
      const isFull = await isAlmostFull(this.#folder);
      const hint = isFull ? ` (no space left: ${this.#folder} is full)` : "";
      throw new CriError("UNKNOWN", `${runtime.path} ${verb[0]}: ${reported}${hint}`);
    } finally {
      rmSync(logFile, { force: true });
    }
  }

  async #run(argv: string[], verb: string, options: SpawnOptions): Promise<number> {
    const what = `${argv[0]} ${verb}`;
    const late = AbortSignal.timeout(options.timeoutMs);
    const signal = options.signal === undefined ? late : AbortSignal.any([options.signal, late]);
    throwIfAborted(what, signal);
    const stdio = options.stdio?.map(({ fd }) => fd) ?? "ignore";
    const child = withMark(options.mark, () =>
      spawn(argv[0]!, argv.slice(1), { stdio, detached: true, env: this.#env }),
    );
    if (child.pid !== undefined) this.#attachLock.takeAhead(child.pid, verb);
    let exitCode: number | undefined;
    let left: Child[] = [];
    // Before superviseGroup() kills the group: what loses its parent can no longer be found by it.
    const collect = () => (left = child.pid === undefined ? [] : descendantsOf(child.pid));
    signal.addEventListener("abort", collect, { once: true });
    try {
      exitCode = await superviseGroup(child, what, signal);
      return exitCode;
    } catch (error) {
      throw cannotRun(argv[0]!, error, "FAILED_PRECONDITION");
    } finally {
      signal.removeEventListener("abort", collect);
      for (const { pid, started } of left) if (startTime(pid) === started) kill(pid);
      const isKilled = exitCode === undefined || exitCode > 128;
      if (exitCode !== 0) await this.#endChildren(child.pid, isKilled ? argv : []);
    }
  }

  /**
   * Ends what a failed call has left: a wrapper script that somebody kills leaves its children. These are in its
   * process group or, with a session of their own, have the call's arguments.
   */
  async #endChildren(group: number | undefined, argv: readonly string[]): Promise<void> {
    // Without a member the number may have been given to another process, which then exists.
    if (group !== undefined && !existsSync(`/proc/${group}`)) killGroup(group);
    const log = argv[argv.indexOf("--log") + 1];
    if (argv.length === 0 || log === undefined) return;
    const search = { folder: this.#folder, text: `\0--log\0${log}\0` };
    for (const { pid, started } of await processesWith(search, () => {})) {
      if (startTime(pid) === started) kill(pid);
    }
  }
}
