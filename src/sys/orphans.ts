// Zombies that nobody waits for: a subreaper adopts what its children leave behind.
import { readdirSync, readFileSync } from "node:fs";
import { reap } from "./wait.ts";
import { isEngineChild } from "./children.ts";
import { isZombie } from "./process.ts";

/** How often a subreaper looks. */
export const orphanScanMs = 1_000;

export class Orphans {
  #seen = new Set<number>();

  /**
   * Reaps children that were zombies at the last look already, but none that the engine waits for: where
   * the event loop is late, those are zombies for long. `kept` are waited for by others.
   */
  reap(kept: (pid: number) => boolean): void {
    const zombies = new Set(
      children().filter((pid) => !isEngineChild(pid) && !kept(pid) && isZombie(pid)),
    );
    for (const pid of zombies) if (this.#seen.has(pid)) reap(pid);
    this.#seen = zombies;
  }
}

function children(): number[] {
  return readdirSync("/proc/self/task").flatMap((thread) =>
    readFileSync(`/proc/self/task/${thread}/children`, "utf8")
      .split(" ")
      .filter(Boolean)
      .map(Number),
  );
}
