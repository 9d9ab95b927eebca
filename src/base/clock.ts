// Reads the wall clock with a resolution finer than Date.now(), for CRI timestamps and for the times of calls.
// Decision: the time is that of the monotonic clock (performance.now()) plus an offset, which changes only when the
// wall clock is set. Until then two times of one process keep their order, even if the process was not scheduled
// between them.

/** A larger difference between the two clocks means that the wall clock was set. */
const clockStepMs = 50;
/** If two readings are further apart, the process was not scheduled between them: they cannot be compared. */
const gapMsMax = 1;
/** Attempts at a comparison; after that the offset stays as it is until the next call. */
const readingsMax = 5;

type Clocks = { monotonicMs: () => number; dateMs: () => number };

export class WallClock {
  readonly #clocks: Clocks;
  /** The zero of the monotonic clock, in milliseconds since the epoch. */
  #originMs: number;

  constructor(clocks: Clocks, originMs: number) {
    this.#clocks = clocks;
    this.#originMs = originMs;
  }

  /** Converts a reading of the monotonic clock to milliseconds since the epoch. */
  at(readingMs: number): number {
    this.#follow();
    return this.#originMs + readingMs;
  }

  #follow(): void {
    const { monotonicMs, dateMs } = this.#clocks;
    for (let i = 0; i < readingsMax; i++) {
      const before = monotonicMs();
      const date = dateMs();
      const after = monotonicMs();
      if (after - before > gapMsMax) continue;
      if (Math.abs(this.#originMs + before - date) > clockStepMs) this.#originMs = date - before;
      return;
    }
  }
}

const clock = new WallClock(
  { monotonicMs: () => performance.now(), dateMs: () => Date.now() },
  performance.timeOrigin,
);

/** Returns milliseconds since the epoch, with a fraction; follows a clock that is set. */
export function nowMs(): number {
  return clock.at(performance.now());
}

/** Converts a reading of performance.now() to milliseconds since the epoch. */
export function epochMs(readingMs: number): number {
  return clock.at(readingMs);
}

/** Returns nanoseconds since the epoch, CRI's unit for timestamps. */
export function nowNs(): bigint {
  const ms = nowMs();
  return BigInt(Math.trunc(ms)) * 1_000_000n + BigInt(Math.trunc((ms % 1) * 1e6));
}
