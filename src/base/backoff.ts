// Backoff: after each failure of a key its next retry is due later, up to a bound.

export class Backoff {
  readonly #firstMs: number;
  readonly #maxMs: number;
  readonly #failures = new Map<string, { count: number; dueMs: number }>();

  constructor({ firstMs, maxMs }: { firstMs: number; maxMs: number }) {
    this.#firstMs = firstMs;
    this.#maxMs = maxMs;
  }

  /** nowMs: on a clock that is not set, such as performance.now(). */
  isDue(key: string, nowMs: number = performance.now()): boolean {
    return nowMs >= this.dueMs(key);
  }

  /** Time of the next retry, on isDue's clock; 0: now. */
  dueMs(key: string): number {
    return this.#failures.get(key)?.dueMs ?? 0;
  }

  /** Returns the milliseconds until the next retry. */
  failed(key: string, nowMs: number = performance.now()): number {
    const count = this.#failures.get(key)?.count ?? 0;
    const waitMs = Math.min(this.#firstMs * 2 ** count, this.#maxMs);
    this.#failures.set(key, { count: count + 1, dueMs: nowMs + waitMs });
    return waitMs;
  }

  succeeded(key: string): void {
    this.#failures.delete(key);
  }
}
