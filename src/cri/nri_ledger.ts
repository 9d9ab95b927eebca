// The ends that NRI plugins are still owed: each pod and container is stopped once and removed once for
// them, whatever ends it (a call, a failed call's undoing, the sweep, recovery).

export class NriLedger {
  readonly #states = new Map<string, "live" | "stopped">();

  /** Plugins know of it from here on: they were asked, or see it when they synchronize. */
  began(id: string, state: "live" | "stopped" = "live"): void {
    this.#states.set(id, state);
  }

  /** Whether plugins take it for live: a plugin that comes is shown it. */
  isLive(id: string): boolean {
    return this.#states.get(id) === "live";
  }

  /** Whether the stop is owed; from here on it is not. */
  stop(id: string): boolean {
    if (!this.isLive(id)) return false;
    this.#states.set(id, "stopped");
    return true;
  }

  /** Whether the removal is owed; from here on it is not. The stop comes before it. */
  remove(id: string): boolean {
    return this.#states.delete(id);
  }
}
