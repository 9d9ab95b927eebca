// Measures the lag of this process's event loop, which delays every call.

/** Shorter lags may go unnoticed. */
const tickMs = 5;

/** Ticks only while it is watched, so that it does not wake an idle process. */
export class LoopLag {
  readonly #onLate: (lateMs: number) => void;
  #watchers = 0;
  #dueMs = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(onLate: (lateMs: number) => void) {
    this.#onLate = onLate;
  }

  /** Starts measuring; the result stops it. */
  watch(): Disposable {
    if (this.#watchers++ === 0) this.#tick();
    return {
      [Symbol.dispose]: () => {
        if (--this.#watchers > 0) return;
        clearTimeout(this.#timer);
        this.#report(); // the loop may have been blocked until now
      },
    };
  }

  #tick(): void {
    this.#dueMs = performance.now() + tickMs;
    this.#timer = setTimeout(() => {
      this.#report();
      this.#tick();
    }, tickMs);
  }

  #report(): void {
    const lateMs = performance.now() - this.#dueMs;
    if (lateMs > 0) this.#onLate(lateMs);
  }
}
