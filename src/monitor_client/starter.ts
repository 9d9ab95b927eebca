// PendingStarts monitors for a state folder, and ends those that hold the place of one and do not serve: a
// monitor that is stopped, that lost its socket or its folder. Containers outlive that, and the next one
// takes over.
import { constants, mkdirSync, readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import type { Log } from "../base/log.ts";
import { spawn } from "../sys/children.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { kill, processState, startTime } from "../sys/process.ts";
import { trimMonitorLogFile, monitorLogFile } from "../monitor/monitor_log_file.ts";
import { monitorArgs } from "../monitor/protocol.ts";

/** When one that was started has neither ended nor answered: it hangs, or the node has much to do. */
const startAgainMs = 15_000;
/** Before another one is started where the last has ended; each time twice as long. */
const pauseMsFirst = 20;
const pauseMsMax = 2_000;

type Candidate = { atMs: number; hasEnded: () => boolean };
/** Any other is due. */
const none: Candidate = { atMs: Number.NEGATIVE_INFINITY, hasEnded: () => false };

export class Starter {
  readonly #state: string;
  readonly #program: string[];
  readonly #log: Log;
  /** Of those that were started since the last one served: pids that have not ended. */
  readonly #started = new Set<number>();
  #latest = none;
  #pauseMs = pauseMsFirst;

  /** program: program and arguments that run this same executable. */
  constructor({ state, program, log }: { state: string; program: string[]; log: Log }) {
    this.#state = state;
    this.#program = program;
    this.#log = log;
  }

  /** PendingStarts one, unless the latest may yet serve, or has ended only just now. */
  startIfDue(): void {
    const ended = this.#latest.hasEnded();
    const ageMs = performance.now() - this.#latest.atMs;
    if (ageMs < (ended ? this.#pauseMs : startAgainMs)) return;
    if (ended) this.#pauseMs = Math.min(this.#pauseMs * 2, pauseMsMax);
    const atMs = performance.now();
    const pid = this.#start();
    this.#latest = { atMs, hasEnded: () => !this.#started.has(pid) };
  }

  /** One is looked for: what was started before is an older one now. */
  begin(): void {
    this.#started.clear();
    this.#latest = none;
    this.#pauseMs = pauseMsFirst;
  }

  /** The one that becomes another build comes by itself, unless that ends it. */
  expect(pid: number): void {
    const started = startTime(pid) ?? "";
    const hasEnded = () => processState(pid, started) !== "running";
    this.#latest = { atMs: performance.now(), hasEnded };
  }

  /** One answers. Others that this folder has are earlier ones, which lost their place to it. */
  serves(pid: number): void {
    if (this.#started.size > 0) this.#killThose((other) => other !== pid);
  }

  /** Those that hold the place and do not serve. Without `all`, one that was just started may yet come. */
  oust({ all }: { all: boolean }): void {
    this.#killThose((pid) => all || !this.#started.has(pid));
  }

  #killThose(isDoomed: (pid: number) => boolean): void {
    for (const pid of monitorsOf(this.#state).filter(isDoomed)) {
      this.#log.error("killing a monitor that does not serve, another one takes over", { pid });
      kill(pid);
    }
  }

  /** The monitor outlives this process: a session of its own, and no stream of ours. */
  #start(): number {
    mkdirSync(join(this.#state, "monitor"), { recursive: true, mode: 0o700 });
    trimMonitorLogFile(this.#state);
    const { O_WRONLY, O_APPEND, O_CREAT } = constants;
    using output = Descriptor.open(
      monitorLogFile(this.#state),
      O_WRONLY | O_APPEND | O_CREAT,
      0o600,
    );
    const argv = [...this.#program, ...monitorArgs(this.#state)];
    const child = spawn(argv[0]!, argv.slice(1), {
      detached: true,
      cwd: "/",
      stdio: ["ignore", output.fd, output.fd],
    });
    const { pid = 0 } = child;
    this.#started.add(pid);
    child.on("error", (error) =>
      this.#log.error("cannot start the monitor", { error: error.message }),
    );
    // Killed, or it has met an older one that was ending.
    child.on("exit", () => this.#started.delete(pid));
    child.unref();
    return pid;
  }
}

/** Monitors of this very folder: another mount namespace may have another one of the same name. */
function monitorsOf(state: string): number[] {
  const here = statSync(state);
  const words = `\0${monitorArgs(state).join("\0")}\0`;
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => {
      try {
        if (!readFileSync(`/proc/${pid}/cmdline`, "utf8").includes(words)) return false;
        const there = statSync(`/proc/${pid}/root${state}`);
        return there.dev === here.dev && there.ino === here.ino;
      } catch {
        return false; // it has ended
      }
    })
    .map(Number);
}
