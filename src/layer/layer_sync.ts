// Brings new layers to the disk by a helper, while nobody waits for it (layers.ts).
import { setTimeout as sleep } from "node:timers/promises";
import { inTime } from "../base/abort.ts";
import { messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { UnpackHelpers } from "./helpers.ts";
import type { LayerStore } from "./layers.ts";

/** After a sync that failed. */
const againMs = 60_000;
/** For the last one, when the daemon ends. */
const lastMs = 5_000;

export class LayerSync {
  readonly #layers: LayerStore;
  readonly #startHelpers: () => UnpackHelpers;
  readonly #log: Log;
  /** No pause is kept any more. */
  readonly #ending = new AbortController();
  readonly #end = new AbortController();
  #running: Promise<void> | undefined;

  constructor(layers: LayerStore, startHelpers: () => UnpackHelpers, log: Log) {
    this.#layers = layers;
    this.#startHelpers = startHelpers;
    this.#log = log;
  }

  /** Goes on until no layer is left that a power loss could take. */
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
        this.#log.warn("cannot sync new layers", { error: messageOf(error) });
        if (this.#ending.signal.aborted) break;
        await sleep(againMs, undefined, { signal: this.#ending.signal }).catch(() => {});
      }
    }
    this.#running = undefined; // in the same breath as the look at what is left
  }

  /** An orderly reboot keeps new layers. */
  async end(): Promise<void> {
    this.#ending.abort();
    this.begin();
    try {
      await inTime(Promise.resolve(this.#running), "sync of new layers", lastMs);
    } catch (error) {
      this.#log.warn("new layers may not be on the disk", { error: messageOf(error) });
    }
    this.#end.abort();
  }
}
