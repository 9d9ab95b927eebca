// Removes the sockets that shims have left: containerd's shims since 2.0 do not remove theirs, nor do killed ones. A
// pod's shims use the same socket one after the other, so it stays while a shim is being started.
import { rmSync } from "node:fs";

export class ShimSockets {
  readonly #isUsed: (path: string) => boolean;
  /** Of shims whose last container has been removed. */
  readonly #left = new Set<string>();
  #starts = 0;

  /** isUsed: returns true for a path that belongs to a container's shim. */
  constructor(isUsed: (path: string) => boolean) {
    this.#isUsed = isUsed;
  }

  /** Starts a shim; isUsed() knows its socket when `start` is done. */
  async starting<T>(start: () => Promise<T>): Promise<T> {
    this.#starts++;
    try {
      return await start();
    } finally {
      this.#starts--;
      this.#remove();
    }
  }

  /** Removes the socket of a container that is gone, at once or after the shims that are being started. */
  left(path: string): void {
    this.#left.add(path);
    this.#remove();
  }

  #remove(): void {
    if (this.#starts > 0) return;
    for (const path of this.#left) {
      if (!this.#isUsed(path)) rmSync(path, { force: true });
    }
    this.#left.clear();
  }
}
