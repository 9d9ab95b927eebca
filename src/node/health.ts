// Checks whether pods can run: the default runtime, the monitor, and the graph folder.
// Decision: a full disk is no problem here. A kubelet stops its pods' synchronization while the runtime is not
// ready, and with it the removal of pods and images that would make room; it learns of the disk by ImageFsInfo.
// Decision: a read-only disk is one. Nothing can be made or removed there; what runs goes on and can be stopped. A node
// that works is not written to for the check: only after a write has failed, a file is written until that succeeds.
import { constants } from "node:fs";
import { access, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { inTime } from "../base/abort.ts";
import { systemdRuns } from "../base/config_host.ts";
import { CriError, errnoOf, isReadOnlyDisk, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { withoutSystemd } from "./systemd.ts";

/**
 * freshMs: a result is reused for this long, since clients ask every few seconds; partMs: a check waits this
 * long for each part; silentMs: a part without an answer is a problem after this time. A busy node is slow, and
 * a monitor that is being replaced answers late: neither may make a kubelet report its node as not ready.
 */
const usualTimes = { freshMs: 3_000, partMs: 2_000, silentMs: 10_000 };

export type Problem = {
  /** CRI's reason of a condition. */
  reason:
    | "RuntimeMissing"
    | "MonitorNotResponding"
    | "GraphNotUsable"
    | "GraphReadOnly"
    | "CgroupDriverUnusable";
  message: string;
};

/** Folders of graph that may be file systems of their own. */
const graphFolders = ["containers", "sandboxes", "images", "layers"];
const probeFile = ".write-check.tmp";
const readOnlyCure =
  "no pod can be made or removed; those that run go on and can be stopped. After a disk error (see the kernel's log) run fsck, then mount it read-write";

/** Parts of the daemon's context; handlers: the default one is under "". */
type Parts = {
  handlers: ReadonlyMap<string, { problem?: string | undefined; command: { path: string } }>;
  monitor: { call(name: "ping", params: Record<string, never>): Promise<unknown> };
  config: { graph: string };
  cgroup: { name: string };
  log: Log;
};

export class Health {
  readonly #context: () => Parts;
  readonly #times: typeof usualTimes;
  #problems: Promise<Problem[]> | undefined;
  #atMs = 0;
  #logged = "";
  /** Parts without an answer since an earlier check: a second access would wait, too. */
  readonly #waiting = new Map<string, { done: Promise<void>; sinceMs: number }>();
  /** Set while a disk may refuse writes though its folders look writable, as ext4 does after an error. */
  #isSuspect = false;
  /** As the last check has found the graph folder. */
  #isReadOnly = false;

  constructor(context: () => Parts, times = usualTimes) {
    this.#times = times;
    this.#context = context;
  }

  /** Returns the problems as of the last seconds; none: pods can run. Starts no process. Never rejects. */
  problems(): Promise<Problem[]> {
    if (this.#problems === undefined || performance.now() - this.#atMs > this.#times.freshMs) {
      this.#atMs = performance.now();
      this.#problems = this.#check();
    }
    return this.#problems;
  }

  /** Yields the problems whenever they are of other kinds than before, until the signal aborts. */
  async *changes(signal: AbortSignal): AsyncGenerator<Problem[]> {
    for (let last: string | undefined; !signal.aborted;) {
      const problems = await this.problems();
      const kinds = kindsOf(problems);
      if (kinds !== last) yield problems;
      last = kinds;
      await sleep(this.#times.freshMs, undefined, { signal }).catch(() => {});
    }
  }

  /**
   * Refuses a call that makes something in the graph folder while its disk is known to be read-only: each attempt would
   * leave a record that cannot be removed. @throws CriError FAILED_PRECONDITION
   */
  async requireWritableGraph(): Promise<void> {
    if (!this.#isReadOnly) return;
    const problem = (await this.problems()).find(({ reason }) => reason === "GraphReadOnly");
    if (problem !== undefined) throw new CriError("FAILED_PRECONDITION", problem.message);
  }

  /** Has the next check write to the graph folder, if a call has failed because a disk is read-only. */
  noteFailure(error: unknown): void {
    if (this.#isSuspect || !isReadOnlyDisk(error)) return;
    this.#isSuspect = true;
    this.#problems = undefined;
  }

  async #check(): Promise<Problem[]> {
    const { graph } = this.#context().config;
    const accessGraph = () => this.#accessGraph(graph);
    const found = await Promise.all([
      this.#part("RuntimeMissing", "the default runtime", () => this.#checkRuntime()),
      this.#part("MonitorNotResponding", "the monitor", () => this.#pingMonitor()),
      this.#part("GraphNotUsable", `the graph folder ${graph}`, accessGraph),
      this.#part("CgroupDriverUnusable", "cgroups", () => this.#checkCgroupDriver()),
    ]);
    const problems = found.filter((problem) => problem !== undefined);
    this.#isReadOnly = problems.some(({ reason }) => reason === "GraphReadOnly");
    this.#log(problems);
    return problems;
  }

  /** what: the part, for messages. */
  async #part(
    reason: Problem["reason"],
    what: string,
    check: () => Promise<void>,
  ): Promise<Problem | undefined> {
    const waiting = this.#waiting.get(reason) ?? this.#begin(reason, check());
    try {
      await inTime(waiting.done, what, this.#times.partMs);
      return undefined;
    } catch (error) {
      if (isReadOnlyDisk(error)) {
        return {
          reason: "GraphReadOnly",
          message: `${what}: ${messageOf(error)}: ${readOnlyCure}`,
        };
      }
      if (!this.#waiting.has(reason)) return { reason, message: `${what}: ${messageOf(error)}` };
      const { silentMs } = this.#times;
      if (performance.now() - waiting.sinceMs < silentMs) return undefined;
      return { reason, message: `${what} has not answered for ${silentMs / 1000} s` };
    }
  }

  #begin(reason: Problem["reason"], answer: Promise<void>) {
    const done = answer.finally(() => this.#waiting.delete(reason));
    const waiting = { done, sinceMs: performance.now() };
    this.#waiting.set(reason, waiting);
    return waiting;
  }

  async #accessGraph(graph: string): Promise<void> {
    await access(graph, constants.W_OK);
    for (const name of graphFolders) {
      await access(join(graph, name), constants.W_OK).catch((error: unknown) => {
        if (errnoOf(error) !== "ENOENT") throw error; // it is made when it is needed
      });
    }
    if (!this.#isSuspect) return;
    const probe = join(graph, probeFile);
    await writeFile(probe, "", { mode: 0o600 });
    await rm(probe, { force: true });
    this.#isSuspect = false;
  }

  async #checkCgroupDriver(): Promise<void> {
    if (this.#context().cgroup.name === "systemd" && !systemdRuns())
      throw new Error(withoutSystemd);
  }

  async #pingMonitor(): Promise<void> {
    await this.#context().monitor.call("ping", {});
  }

  async #checkRuntime(): Promise<void> {
    const { problem, command } = this.#context().handlers.get("")!;
    if (problem !== undefined) throw new Error(problem);
    try {
      await access(command.path, constants.X_OK);
    } catch (cause) {
      const next = 'install it, or correct "runtimes" in daemon.json';
      throw new Error(`${command.path} cannot be executed (${errnoOf(cause)}): ${next}`, { cause });
    }
  }

  /** The texts of one problem may differ, by a process id for example. */
  #log(problems: Problem[]): void {
    const kinds = kindsOf(problems);
    if (kinds === this.#logged) return;
    this.#logged = kinds;
    const { log } = this.#context();
    if (kinds === "") return log.info("the runtime is ready again");
    log.error("the runtime is not ready: pods cannot be started", { problem: textOf(problems) });
  }
}

function kindsOf(problems: readonly Problem[]): string {
  return problems.map(({ reason }) => reason).join(" ");
}

export function textOf(problems: readonly Problem[]): string {
  return problems.map(({ message }) => message).join("; ");
}
