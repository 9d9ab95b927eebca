// Detects stalls of the machine: a process with precedence over all others meets its timers late only then.
// Delays of the daemon at those times do not count.
import { spawn } from "node:child_process";
import process from "node:process";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const tickMs = 5;
/** Tolerated lateness of a timer without a stall. */
const usualMs = 2;

/** Watches until it is disposed of. Needs root and util-linux. */
export class Stalls implements Disposable {
  readonly #stalls: { untilMs: number; lateMs: number }[] = [];
  readonly #child = spawn("chrt", ["--fifo", "1", process.execPath, import.meta.filename], {
    stdio: ["ignore", "pipe", "inherit"],
  });

  constructor() {
    createInterface(this.#child.stdout).on("line", (line) => {
      const [untilMs = 0, lateMs = 0] = line.split(" ").map(Number);
      this.#stalls.push({ untilMs, lateMs });
    });
  }

  /** ms: the longest of those that ended in this time, from sinceMs of performance.now(). */
  longestMs(sinceMs: number): number {
    if (this.#child.exitCode !== null) throw new Error("the stall detector has exited");
    const ended = ({ untilMs }: { untilMs: number }) => untilMs > performance.timeOrigin + sinceMs;
    return Math.max(0, ...this.#stalls.filter(ended).map(({ lateMs }) => lateMs));
  }

  [Symbol.dispose](): void {
    this.#child.kill();
  }
}

async function watch(): Promise<never> {
  for (;;) {
    const dueMs = performance.now() + tickMs;
    await sleep(tickMs);
    const now = performance.now();
    if (now - dueMs < usualMs) continue;
    process.stdout.write(`${performance.timeOrigin + now} ${now - dueMs}\n`);
  }
}

if (import.meta.main) await watch();
