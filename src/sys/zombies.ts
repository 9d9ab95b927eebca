// Reaps zombies that no code waits for: a subreaper adopts its descendants' orphans.
import { readdirSync, readFileSync } from "node:fs";
import { errnoOf } from "../base/errors.ts";
import { isEngineChild } from "./children.ts";
import { isZombie } from "./process.ts";
import { reap } from "./wait.ts";

/** A subreaper scans its children at this interval. */
export const orphanScanMs = 1_000;

export class Orphans {
  /** Pid → time of the first scan that saw the zombie, by performance.now(). */
  #seen = new Map<number, number>();

  /**
   * Reaps children that were already zombies in the previous scan. Skips those for which `kept` is true, and
   * those that the engine waits for: they can stay zombies for long when the event loop is late. before: the
   * time at which a process start began whose pid `kept` does not know yet; zombies first seen later stay.
   */
  reap(kept: (pid: number) => boolean, before = Number.POSITIVE_INFINITY): void {
    const now = performance.now();
    const zombies = new Map<number, number>();
    for (const pid of children()) {
      if (isEngineChild(pid) || kept(pid) || !isZombie(pid)) continue;
      const since = this.#seen.get(pid);
      if (since !== undefined && since < before) reap(pid);
      else zombies.set(pid, since ?? now);
    }
    this.#seen = zombies;
  }
}

function children(): number[] {
  return readdirSync("/proc/self/task").flatMap((thread) =>
    childrenOf(thread).split(" ").filter(Boolean).map(Number),
  );
}

/** The engine's threads come and go; the children of one that has ended belong to another thread. */
function childrenOf(thread: string): string {
  try {
    return readFileSync(`/proc/self/task/${thread}/children`, "utf8");
  } catch (error) {
    if (["ENOENT", "ESRCH"].includes(errnoOf(error) ?? "")) return "";
    throw error;
  }
}
