// How late this process's event loop is: what every caller waits for, whatever they asked.

/** What is shorter than this may not be seen. */
const tickMs = 5;

/** Ticks while it is watched only: a process that has nothing to do is not woken for it. */
export class LoopLag {
  readonly #onLate: (lateMs: number) => void;
  #watchers = 0;
  #dueMs = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(onLate: (lateMs: number) => void) {
    this.#onLate = onLate;
  }

  /** From now until that is disposed of. */
  watch(): Disposable {
    if (this.#watchers++ === 0) this.#tick();
    return {
      [Symbol.dispose]: () => {
        if (--this.#watchers > 0) return;
        clearTimeout(this.#timer);
        this.#tell(); // what held the loop up may have been the last of it
      },
    };
  }

  #tick(): void {
    this.#dueMs = performance.now() + tickMs;
    this.#timer = setTimeout(() => {
      this.#tell();
      this.#tick();
    }, tickMs);
  }

  #tell(): void {
    const lateMs = performance.now() - this.#dueMs;
    if (lateMs > 0) this.#onLate(lateMs);
  }
}
