// Zombies that nobody waits for: a subreaper adopts what its children leave behind.
import { readdirSync, readFileSync } from "node:fs";
import { errnoOf } from "../base/errors.ts";
import { isEngineChild } from "./children.ts";
import { isZombie } from "./process.ts";
import { reap } from "./wait.ts";

/** How often a subreaper looks. */
export const orphanScanMs = 1_000;

export class Orphans {
  /** When each was first seen, by performance.now(). */
  #seen = new Map<number, number>();

  /**
   * Reaps children that were zombies at the last look already, but none that the engine waits for: where
   * the event loop is late, those are zombies for long. `kept` are waited for by others. Since `before`
   * somebody starts a process whose pid is not in `kept` yet: only what was a zombie then is reaped.
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

/** The engine's threads come and go: of one that has ended the others have its children now. */
function childrenOf(thread: string): string {
  try {
    return readFileSync(`/proc/self/task/${thread}/children`, "utf8");
  } catch (error) {
    if (["ENOENT", "ESRCH"].includes(errnoOf(error) ?? "")) return "";
    throw error;
  }
}
