// Starts of containers that have not ended. One start runs for each container; a remove, and a daemon whose
// predecessor asked for the start, wait for its end here.
import type { Started } from "./protocol.ts";

export class PendingStarts {
  readonly #underWay = new Map<string, Promise<Started>>();

  get ids(): string[] {
    return [...this.#underWay.keys()];
  }

  has(id: string): boolean {
    return this.#underWay.has(id);
  }

  /** The caller has made sure that none is under way. */
  async run(id: string, start: Promise<Started>): Promise<Started> {
    this.#underWay.set(id, start);
    try {
      return await start;
    } finally {
      this.#underWay.delete(id);
    }
  }

  /** undefined when none is under way. @throws as the start does. */
  async join(id: string): Promise<Started | undefined> {
    return this.#underWay.get(id);
  }

  /** Returns when none is under way, whether it has succeeded or not. */
  async ended(id: string): Promise<void> {
    await this.#underWay.get(id)?.catch(() => {});
  }
}
