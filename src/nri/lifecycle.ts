// Tracks which pods and containers NRI plugins consider live, so that each is reported stopped once and
// removed once, whatever ends it (a call, the rollback of a failed call, the sweep, recovery).

export class NriLifecycle {
  readonly #states = new Map<string, "live" | "stopped">();

  /** Records a pod or container that plugins have accepted, or will see when they synchronize. */
  began(id: string, state: "live" | "stopped" = "live"): void {
    this.#states.set(id, state);
  }

  /** Returns true for a pod or container that a newly connected plugin is to see. */
  isLive(id: string): boolean {
    return this.#states.get(id) === "live";
  }

  /** Returns true if its stop is still to be reported; false from then on. */
  stop(id: string): boolean {
    if (!this.isLive(id)) return false;
    this.#states.set(id, "stopped");
    return true;
  }

  /** Returns true if its removal is still to be reported, after its stop; false from then on. */
  remove(id: string): boolean {
    return this.#states.delete(id);
  }
}
