// Removes the files of unused layers in the background, and lets callers wait: a million files take minutes.
import { messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { removeTree } from "../sys/remove_tree.ts";

export class Removals {
  readonly #log: Log;
  readonly #removeTree: typeof removeTree;
  #begun: Promise<unknown> = Promise.resolve();
  #ended = false;

  constructor(log: Log, remove = removeTree) {
    this.#log = log;
    this.#removeTree = remove;
  }

  /** Counts a removal among those that freed() waits for. */
  begin(removal: () => Promise<void>): Promise<void> {
    const begun = removal();
    this.#begun = Promise.allSettled([this.#begun, begun]);
    return begun;
  }

  /** Waits for all removals that have begun: their space is free then. */
  async freed(): Promise<void> {
    await this.#begun;
  }

  /** Begins no further removal of a path: the daemon is ending, and its next start removes what is left. */
  end(): void {
    this.#ended = true;
  }

  /** Removes the paths one after another; logs those that cannot be removed. */
  async remove(...paths: readonly string[]): Promise<void> {
    for (const path of paths) {
      if (this.#ended) return;
      try {
        await this.#removeTree(path);
      } catch (error) {
        this.warn(path, error);
      }
    }
  }

  warn(path: string, error: unknown): void {
    const fields = { path, error: messageOf(error) };
    this.#log.warn("cannot remove files of a layer that is not used", fields);
  }
}
