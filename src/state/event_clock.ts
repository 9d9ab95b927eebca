// Event clock: issues timestamps for events and statuses, each later than all before, also after the wall
// clock was set back or the daemon restarted. A client drops an event that is not newer than its last one.
import { readFileSync } from "node:fs";
import { errnoOf, messageOf } from "../base/errors.ts";
import { nowNs } from "../base/clock.ts";
import { replaceInMemory } from "../sys/file.ts";
import { removeTreeNow } from "../sys/remove_tree.ts";

/** Time reserved ahead in the file: bounds the writes to one a second, and the jump after a restart to one second. */
const reserveNs = 1_000_000_000n;

export class EventClock {
  readonly #file: string;
  readonly #onUnwritten: (problem: string) => void;
  #lastNs: bigint;
  #reservedNs: bigint;

  /** file: keeps the reservation; it need not outlive a boot, as no client does. */
  constructor(file: string, onUnwritten: (problem: string) => void) {
    this.#file = file;
    this.#onUnwritten = onUnwritten;
    this.#lastNs = this.#readReserved();
    this.#reservedNs = this.#lastNs;
    this.next(); // reports an unwritable file at the start
  }

  /** Nanoseconds since the epoch; ahead of a wall clock that was set back. */
  next(): bigint {
    const now = nowNs();
    this.#lastNs = now > this.#lastNs ? now : this.#lastNs + 1n;
    if (this.#lastNs > this.#reservedNs) this.#reserve();
    return this.#lastNs;
  }

  #reserve(): void {
    this.#reservedNs = this.#lastNs + reserveNs;
    try {
      replaceInMemory(this.#file, String(this.#reservedNs));
    } catch (error) {
      this.#onUnwritten(`${this.#file}: ${messageOf(error)}`);
    }
  }

  #readReserved(): bigint {
    try {
      const text = readFileSync(this.#file, "utf8");
      return /^\d{1,20}$/.test(text) ? BigInt(text) : 0n;
    } catch (error) {
      if (errnoOf(error) !== "ENOENT") this.#removeUnreadable();
      return 0n;
    }
  }

  /** Removes what stands in the file's place, such as a folder; if that fails, the next reservation reports it. */
  #removeUnreadable(): void {
    try {
      removeTreeNow(this.#file);
    } catch (error) {
      this.#onUnwritten(`${this.#file}: ${messageOf(error)}`);
    }
  }
}
