// How late this process's event loop is: what every caller waits for, whatever they asked.

/** What is shorter than this may not be seen. */
const tickMs = 5;

/** Ticks while somebody waits for an answer; a process that has nothing to do is not woken for it. */
export class LoopLag {
  readonly #onLate: (lateMs: number) => void;
  #waiting = 0;
  #dueMs = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(onLate: (lateMs: number) => void) {
    this.#onLate = onLate;
  }

  /** From now until it is disposed of, somebody waits. */
  watch(): Disposable {
    if (this.#waiting++ === 0) this.#tick();
    return {
      [Symbol.dispose]: () => {
        if (--this.#waiting > 0) return;
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
