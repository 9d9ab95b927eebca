// Write-behind: copies changed records to disk a second later, so that they outlive a reboot.
import { Semaphore } from "../base/semaphore.ts";

/** Most containers of a job are removed before a write is worthwhile. */
const delayMs = 1_000;
const retryMs = 60_000;

export class WriteBehind {
  readonly #write: (id: string) => Promise<void>;
  readonly #onFailed: (failures: Map<string, unknown>) => void;
  readonly #due = new Set<string>();
  /** Retried later, so that they do not hold up the others. */
  readonly #failed = new Set<string>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #retryTimer: ReturnType<typeof setTimeout> | undefined;
  readonly #passes = new Semaphore(1, "copying records to disk");

  /** onFailed is called once a pass with the ids that could not be written; they are retried. */
  constructor(
    write: (id: string) => Promise<void>,
    onFailed: (failures: Map<string, unknown>) => void,
  ) {
    this.#write = write;
    this.#onFailed = onFailed;
  }

  /** Records that are not copied yet. */
  get length(): number {
    return this.#due.size + this.#failed.size;
  }

  /** Schedules the record for the next pass. */
  add(id: string): void {
    this.#due.add(id);
    this.#timer ??= setTimeout(() => {
      this.#flushDue().catch((error) => this.#onFailed(new Map([["all", error]])));
    }, delayMs).unref();
  }

  /** Writes all that is due, including earlier failures, without delay. */
  async flushAll(): Promise<void> {
    clearTimeout(this.#retryTimer);
    this.#retryTimer = undefined;
    for (const id of this.#failed) this.#due.add(id);
    this.#failed.clear();
    await this.#flushDue();
  }

  async #flushDue(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    await this.#passes.run(undefined, () => this.#pass());
  }

  async #pass(): Promise<void> {
    const failures = new Map<string, unknown>();
    const due = [...this.#due];
    this.#due.clear(); // before the writes: a record that changes meanwhile is due again
    for (const id of due) {
      await this.#write(id).catch((error: unknown) => failures.set(id, error));
    }
    if (failures.size === 0) return;
    for (const id of failures.keys()) this.#failed.add(id);
    this.#retryTimer ??= setTimeout(() => {
      this.flushAll().catch((error) => this.#onFailed(new Map([["all", error]])));
    }, retryMs).unref();
    this.#onFailed(failures);
  }
}
