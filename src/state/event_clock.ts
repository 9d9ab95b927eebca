// Times that order events and statuses: each is later than all before it, also when the wall clock is set
// back and when the daemon is started again. A client drops what is not newer than what it has.
import { readFileSync, rmSync } from "node:fs";
import { errnoOf, messageOf } from "../base/errors.ts";
import { nowNs } from "../base/clock.ts";
import { replaceInMemory } from "../sys/file.ts";

/** How far ahead times are reserved on disk: one write a second at most, and so much of a jump. */
const reserveNs = 1_000_000_000n;

export class EventClock {
  readonly #file: string;
  readonly #onUnwritten: (problem: string) => void;
  #lastNs: bigint;
  #reservedNs: bigint;

  /** file: where the reservation is kept; it need not outlive a boot, as no client does. */
  constructor(file: string, onUnwritten: (problem: string) => void) {
    this.#file = file;
    this.#onUnwritten = onUnwritten;
    this.#lastNs = this.#readReserved();
    this.#reservedNs = this.#lastNs;
    this.next(); // a file that cannot be written shows at the start
  }

  /** Nanoseconds since the epoch; ahead of the wall clock by what that was set back. */
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

  /** A folder, say; where it stays, the next reservation tells. */
  #removeUnreadable(): void {
    try {
      rmSync(this.#file, { recursive: true, force: true });
    } catch (error) {
      this.#onUnwritten(`${this.#file}: ${messageOf(error)}`);
    }
  }
}
