// Reads the wall clock with a resolution finer than Date.now(), for CRI timestamps.

/** The origin of performance.now(), in milliseconds since the epoch. */
let originMs = performance.timeOrigin;
/** Exceeds the difference of reading two clocks in sequence. */
const clockStepMs = 50;

/** Returns milliseconds since the epoch, with a fraction; follows a clock that is set. */
export function nowMs(): number {
  const dateMs = Date.now();
  if (Math.abs(originMs + performance.now() - dateMs) > clockStepMs) {
    originMs = dateMs - performance.now();
  }
  return originMs + performance.now();
}

/** Returns nanoseconds since the epoch, CRI's unit for timestamps. */
export function nowNs(): bigint {
  const ms = nowMs();
  return BigInt(Math.trunc(ms)) * 1_000_000n + BigInt(Math.trunc((ms % 1) * 1e6));
}
