// Starts monitors for a state folder, and kills those that hold its lock and do not serve: a monitor that is
// stopped, or that lost its socket or its folder. Containers outlive that, and the next monitor adopts them.
import { constants, existsSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { type Log, logFailure } from "../base/log.ts";
import { spawnLasting } from "../sys/children.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { processesWith, type FoundProcess } from "../sys/command_lines.ts";
import { kill, lineageOf, processAgeMs, processState, startTime } from "../sys/process.ts";
import { trimMonitorLogFile, monitorLogFile } from "../monitor/monitor_log_file.ts";
import type { Candidate } from "./connection.ts";
import { monitorArgs } from "../monitor/protocol.ts";

export class Starter {
  readonly #state: string;
  readonly #program: string[];
  readonly #log: Log;
  /** Pids that were started since the last monitor served and have not ended. */
  readonly #started = new Set<number>();
  #early: Candidate | undefined;

  /** program: program and arguments that run this same executable. */
  constructor({ state, program, log }: { state: string; program: string[]; log: Log }) {
    this.#state = state;
    this.#program = program;
    this.#log = log;
  }

  /** Starts a monitor for the first search where there is none, while the daemon prepares that search. */
  startEarly(): void {
    if (existsSync(join(this.#state, "monitor", "socket"))) return;
    this.#early = { sinceMs: performance.now(), hasEnded: this.start() };
  }

  /** A new search begins: monitors that an earlier one started count as strangers. Returns the early one. */
  beginSearch(): Candidate | undefined {
    const early = this.#early;
    this.#early = undefined;
    if (early === undefined) this.#started.clear();
    return early;
  }

  /** Starts a monitor; returns a function that tells whether it has ended. */
  start(): () => boolean {
    const pid = this.#start();
    return () => !this.#started.has(pid);
  }

  /** The same function for a monitor that this object has not started. */
  endOf(pid: number): () => boolean {
    const started = startTime(pid) ?? "";
    return () => processState(pid, started) !== "running";
  }

  /** One monitor serves: any other of this folder has lost the lock to it. */
  async killOthers(serving: number): Promise<void> {
    if (this.#started.size > 0) await this.#killThose((pid) => pid !== serving);
  }

  /** Kills monitors that do not serve; `strangers`: only those that this search has not started. */
  async oust(which: "all" | "strangers"): Promise<void> {
    await this.#killThose((pid) => which === "all" || !this.#started.has(pid));
  }

  async #killThose(isDoomed: (pid: number) => boolean): Promise<void> {
    const beginMs = performance.now();
    for (const { pid, started } of await this.#monitors()) {
      const isNew = (processAgeMs(pid) ?? 0) < performance.now() - beginMs;
      if (isNew || startTime(pid) !== started || !isDoomed(pid)) continue;
      this.#log.error("killing a monitor that does not serve, another takes its place", { pid });
      kill(pid);
    }
  }

  /** The monitor outlives the daemon: it gets its own session and none of the daemon's streams. */
  #start(): number {
    mkdirSync(join(this.#state, "monitor"), { recursive: true, mode: 0o700 });
    trimMonitorLogFile(this.#state);
    const appending = constants.O_WRONLY | constants.O_APPEND | constants.O_CREAT;
    using output = Descriptor.open(monitorLogFile(this.#state), appending, 0o600);
    const stdio = ["ignore" as const, output.fd, output.fd];
    const argv = [...this.#program, ...monitorArgs(this.#state)];
    const child = spawnLasting(argv[0]!, argv.slice(1), { detached: true, cwd: "/", stdio });
    const { pid = 0 } = child;
    this.#started.add(pid);
    child.on("error", logFailure(this.#log, "starting a monitor failed"));
    // It was killed, or it has found the lock held by an older monitor that was ending.
    child.on("exit", () => this.#started.delete(pid));
    child.unref();
    return pid;
  }

  /** This folder's monitors. */
  async #monitors(): Promise<FoundProcess[]> {
    const text = `\0${monitorArgs(this.#state).join("\0")}\0`;
    const found = await processesWith({ folder: this.#state, text }, (pid) =>
      this.#log.warn(
        "the command line of a process cannot be read, so it is taken for no monitor",
        { pid },
      ),
    );
    const pids = new Set(found.map(({ pid }) => pid));
    // A child has the arguments of its monitor until it runs its own program.
    return found.filter(({ pid }) => !pids.has(lineageOf(pid)?.parent ?? -1));
  }
}
