// What is written behind everything else: of records that have changed, what outlives a reboot.
import { Semaphore } from "../base/semaphore.ts";

/** Most containers of a job are gone before it is worth a write. */
const settleMs = 1_000;
/** After one that failed. */
const againMs = 60_000;

export class WriteBehind {
  readonly #settle: (id: string) => Promise<void>;
  readonly #onFailed: (failures: Map<string, unknown>) => void;
  readonly #due = new Set<string>();
  /** Due later: they must not hold the others up. */
  readonly #failed = new Set<string>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #againTimer: ReturnType<typeof setTimeout> | undefined;
  readonly #passes = new Semaphore(1);

  /** onFailed is told once of each pass in which some could not be settled: they are due again later. */
  constructor(
    settle: (id: string) => Promise<void>,
    onFailed: (failures: Map<string, unknown>) => void,
  ) {
    this.#settle = settle;
    this.#onFailed = onFailed;
  }

  /** It has changed. */
  add(id: string): void {
    this.#due.add(id);
    this.#timer ??= setTimeout(() => {
      this.#settleDue().catch((error) => this.#onFailed(new Map([["all", error]])));
    }, settleMs).unref();
  }

  /** Settles all that is due, now, and what has failed before. */
  async settleAll(): Promise<void> {
    clearTimeout(this.#againTimer);
    this.#againTimer = undefined;
    for (const id of this.#failed) this.#due.add(id);
    this.#failed.clear();
    await this.#settleDue();
  }

  async #settleDue(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    await this.#passes.run(undefined, () => this.#pass());
  }

  async #pass(): Promise<void> {
    const failures = new Map<string, unknown>();
    const due = [...this.#due];
    this.#due.clear(); // before: what changes meanwhile is due again
    for (const id of due) {
      await this.#settle(id).catch((error: unknown) => failures.set(id, error));
    }
    if (failures.size === 0) return;
    for (const id of failures.keys()) this.#failed.add(id);
    this.#againTimer ??= setTimeout(() => {
      this.settleAll().catch((error) => this.#onFailed(new Map([["all", error]])));
    }, againMs).unref();
    this.#onFailed(failures);
  }
}
