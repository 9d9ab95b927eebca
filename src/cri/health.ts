// Checks whether pods can run: the default runtime, the monitor, and the graph folder.
// Decision: a full disk is no problem here. A kubelet stops its pods' synchronization while the runtime is not
// ready, and with it the removal of pods and images that would make room; it learns of the disk by ImageFsInfo.
import { constants } from "node:fs";
import { access } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { inTime } from "../base/abort.ts";
import { messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";

/**
 * freshMs: a result is reused for this long, since clients ask every few seconds; partMs: deadline of each
 * part of a check.
 */
const usualTimes = { freshMs: 3_000, partMs: 2_000 };

export type Problem = {
  /** CRI's reason of a condition. */
  reason: "RuntimeMissing" | "MonitorNotResponding" | "GraphNotUsable";
  message: string;
};

/** Parts of the daemon's context; handlers: the default one is under "". */
type Parts = {
  handlers: ReadonlyMap<string, { problem?: string | undefined; command: { path: string } }>;
  monitor: { call(name: "ping", params: Record<string, never>): Promise<unknown> };
  config: { graph: string };
  log: Log;
};

export class Health {
  readonly #context: () => Parts;
  readonly #times: typeof usualTimes;
  #problems: Promise<Problem[]> | undefined;
  #atMs = 0;
  #logged = "";
  /** Parts without an answer since an earlier check: a second access would wait, too. */
  readonly #waiting = new Map<string, Promise<void>>();

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

  /** Yields the problems whenever they differ from those before, until the signal aborts. */
  async *changes(signal: AbortSignal): AsyncGenerator<Problem[]> {
    for (let last: string | undefined; !signal.aborted;) {
      const problems = await this.problems();
      const text = textOf(problems);
      if (text !== last) yield problems;
      last = text;
      await sleep(this.#times.freshMs, undefined, { signal }).catch(() => {});
    }
  }

  async #check(): Promise<Problem[]> {
    const found = await Promise.all([
      this.#part("RuntimeMissing", () => this.#checkRuntime()),
      this.#part("MonitorNotResponding", () => this.#pingMonitor()),
      this.#part("GraphNotUsable", () => access(this.#context().config.graph, constants.W_OK)),
    ]);
    const problems = found.filter((problem) => problem !== undefined);
    this.#log(textOf(problems));
    return problems;
  }

  async #part(reason: Problem["reason"], check: () => Promise<void>): Promise<Problem | undefined> {
    const what = {
      ...subjects,
      GraphNotUsable: `the graph folder ${this.#context().config.graph}`,
    };
    const waiting =
      this.#waiting.get(reason) ?? check().finally(() => this.#waiting.delete(reason));
    this.#waiting.set(reason, waiting);
    try {
      await inTime(waiting, what[reason], this.#times.partMs);
      return undefined;
    } catch (error) {
      const message = messageOf(error);
      const named = message.startsWith(what[reason]) ? message : `${what[reason]}: ${message}`;
      return { reason, message: named };
    }
  }

  async #pingMonitor(): Promise<void> {
    await this.#context().monitor.call("ping", {});
  }

  async #checkRuntime(): Promise<void> {
    const { problem, command } = this.#context().handlers.get("")!;
    if (problem !== undefined) throw new Error(problem);
    await access(command.path, constants.X_OK);
  }

  #log(text: string): void {
    if (text === this.#logged) return;
    this.#logged = text;
    const { log } = this.#context();
    if (text === "") log.info("the runtime is ready again");
    else log.error("the runtime is not ready: pods cannot be started", { problem: text });
  }
}

const subjects = { RuntimeMissing: "the default runtime", MonitorNotResponding: "the monitor" };

export function textOf(problems: readonly Problem[]): string {
  return problems.map(({ message }) => message).join("; ");
}
