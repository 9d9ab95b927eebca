// Garbage-collects layers: removes those that no image, mounted root or running operation needs.
import type { LayerStore } from "../layer/layer_store.ts";
import type { ImageRecords } from "./records.ts";
import type { RootfsMounts } from "./rootfs_mounts.ts";

type LayerGcParts = { layers: LayerStore; records: ImageRecords; mounts: RootfsMounts };

export class LayerGc {
  readonly #parts: LayerGcParts;
  /** Chain id → reference count of the running operations. */
  readonly #held = new Map<string, number>();

  constructor(parts: LayerGcParts) {
    this.#parts = parts;
  }

  /** Keeps layers until disposed of, then collects. */
  hold(chainIds: readonly string[]): AsyncDisposable {
    this.#count(chainIds, 1);
    return {
      [Symbol.asyncDispose]: async () => {
        this.#count(chainIds, -1);
        await this.collect();
      },
    };
  }

  #count(chainIds: readonly string[], change: 1 | -1): void {
    for (const id of chainIds) {
      const count = (this.#held.get(id) ?? 0) + change;
      if (count > 0) this.#held.set(id, count);
      else this.#held.delete(id);
    }
  }

  /** Removes the layers that nothing needs, and waits for these removals only. */
  async collect(): Promise<void> {
    const { layers, records, mounts } = this.#parts;
    const ofImages = new Set(records.list().flatMap((image) => image.layers));
    const isNeeded = (id: string) => ofImages.has(id) || this.#held.has(id);
    await layers.collect(mounts.used(), isNeeded);
  }

  /** Does the same, and waits until all removals that have begun have freed their space. */
  async free(): Promise<void> {
    await this.collect();
    await this.#parts.layers.removals.freed();
  }
}
