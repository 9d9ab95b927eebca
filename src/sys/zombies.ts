// Reaps zombies that no code waits for: a subreaper adopts its descendants' orphans.
import { isEngineChild } from "./children.ts";
import { childrenOf, isZombie } from "./process.ts";
import { reap } from "./wait.ts";

/** A subreaper scans its children at this interval. */
export const orphanScanMs = 1_000;

export class Orphans {
  /** Pid → time of the first scan that saw the zombie, by performance.now(). */
  #seen = new Map<number, number>();

  /**
   * Reaps children that were already zombies in the previous scan. Skips those for which `kept` is true, and
   * those that the engine waits for, which stay zombies for long when the event loop is late. before: when the first
   * of the process starts began whose pids `kept` does not know yet; zombies first seen later stay.
   */
  reap(kept: (pid: number) => boolean, before = Number.POSITIVE_INFINITY): void {
    const now = performance.now();
    const zombies = new Map<number, number>();
    for (const pid of childrenOf("self")) {
      if (isEngineChild(pid) || kept(pid) || !isZombie(pid)) continue;
      const since = this.#seen.get(pid);
      if (since !== undefined && since < before) reap(pid);
      else zombies.set(pid, since ?? now);
    }
    this.#seen = zombies;
  }
}
