// Kills the daemon, the monitor, both and the kubelet in turn, while a kubelet's pods run.
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import type { Daemon } from "./harness.ts";
import { hasShortBackOff, type Kubelet } from "./kubelet_node.ts";

/** Time until the first kill, by which jobs have completed, also after back-offs of 10 and 20 s, and the pods that stay run. */
const firstMs = hasShortBackOff ? 60_000 : 120_000;

export class Kills implements AsyncDisposable {
  readonly #daemon: Daemon;
  readonly #node: Kubelet;
  readonly #abort = new AbortController();
  readonly #end: Promise<void>;
  readonly counts = { daemon: 0, monitor: 0, both: 0, kubelet: 0 };

  /** everyMs: 0 is never. */
  constructor(daemon: Daemon, node: Kubelet, plan: { everyMs: number; lastKillMs: number }) {
    this.#daemon = daemon;
    this.#node = node;
    this.#end = plan.everyMs > 0 ? this.#loop(plan) : Promise.resolve();
    this.#end.catch(() => {}); // thrown by stop()
  }

  async #loop({ everyMs, lastKillMs }: { everyMs: number; lastKillMs: number }): Promise<void> {
    const { signal } = this.#abort;
    const pause = (ms: number) => sleep(ms, undefined, { signal }).catch(() => {});
    await pause(firstMs);
    for (;;) {
      for (const victim of ["daemon", "monitor", "both", "kubelet"] as const) {
        if (signal.aborted || Date.now() > lastKillMs) return;
        await this.#kill(victim);
        await pause(everyMs);
      }
    }
  }

  async #kill(victim: keyof Kills["counts"]): Promise<void> {
    this.counts[victim]++;
    if (victim === "kubelet") return this.#node.restart();
    if (victim !== "daemon")
      for (const pid of this.#daemon.monitors()) process.kill(pid, "SIGKILL");
    if (victim !== "monitor") await this.#daemon.restart("SIGKILL");
  }

  /** Ends after the kill under way. @throws Error if the daemon did not start again. */
  async stop(): Promise<void> {
    this.#abort.abort();
    await this.#end;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }
}
