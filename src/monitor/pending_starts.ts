// Tracks the container starts under way, one per container. A remove, and a daemon whose predecessor
// requested the start, wait here for its end.
import type { Started } from "./protocol.ts";

export class PendingStarts {
  readonly #underWay = new Map<string, Promise<Started>>();

  get ids(): string[] {
    return [...this.#underWay.keys()];
  }

  has(id: string): boolean {
    return this.#underWay.has(id);
  }

  /** Tracks a start until it ends; the caller ensures that no other start of the container is under way. */
  async run(id: string, start: Promise<Started>): Promise<Started> {
    this.#underWay.set(id, start);
    try {
      return await start;
    } finally {
      this.#underWay.delete(id);
    }
  }

  /** Waits for the start under way; undefined: there is none. @throws as the start does. */
  async join(id: string): Promise<Started | undefined> {
    return this.#underWay.get(id);
  }

  /** Waits for the start under way, if there is one, whether it succeeds or fails. */
  async ended(id: string): Promise<void> {
    await this.#underWay.get(id)?.catch(() => {});
  }
}
