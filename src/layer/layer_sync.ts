// Syncs new layers to disk in the background, in an unpack helper (layer_store.ts gives the reason).
import { setTimeout as sleep } from "node:timers/promises";
import { inTime } from "../base/abort.ts";
import { messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { UnpackPool } from "./unpack_pool.ts";
import type { LayerStore } from "./layer_store.ts";

/** Delay after a failed sync. */
const retryMs = 60_000;
/** Limit of the last sync, when the daemon ends. */
const lastSyncMs = 5_000;

export class LayerSync {
  readonly #layers: LayerStore;
  readonly #startHelpers: () => UnpackPool;
  readonly #log: Log;
  /** Skips the delay before a retry. */
  readonly #ending = new AbortController();
  readonly #end = new AbortController();
  #running: Promise<void> | undefined;

  constructor(layers: LayerStore, startHelpers: () => UnpackPool, log: Log) {
    this.#layers = layers;
    this.#startHelpers = startHelpers;
    this.#log = log;
  }

  /** Syncs until no layer would be lost by a power failure. */
  begin(): void {
    if (this.#layers.unsynced().length > 0) this.#running ??= this.#run();
  }

  async #run(): Promise<void> {
    const { signal } = this.#end;
    while (this.#layers.unsynced().length > 0 && !signal.aborted) {
      try {
        await using helpers = this.#startHelpers();
        await this.#layers.sync(helpers, signal);
      } catch (error) {
        if (signal.aborted) break;
        this.#log.warn("sync of new layers failed, retrying in 60 s", { error: messageOf(error) });
        if (this.#ending.signal.aborted) break;
        await sleep(retryMs, undefined, { signal: this.#ending.signal }).catch(() => {});
      }
    }
    this.#running = undefined; // no await since unsynced() was read: begin() cannot miss a layer
  }

  /** Syncs once more, so that an orderly reboot keeps new layers. */
  async end(): Promise<void> {
    this.#ending.abort();
    this.begin();
    try {
      await inTime(Promise.resolve(this.#running), "sync of new layers", lastSyncMs);
    } catch (error) {
      this.#log.warn("last sync of new layers failed: a reboot may drop them", {
        error: messageOf(error),
      });
    }
    this.#end.abort();
  }
}
