// Reads the wall clock with a resolution finer than Date.now(), for CRI timestamps.
/** What performance.now() counts from, in milliseconds since the epoch. */
let originMs = performance.timeOrigin;
/** More than what reading two clocks one after the other makes. */
const clockStepMs = 50;

/** This moment in milliseconds since the epoch, with a fraction; follows a clock that is set. */
export function nowMs(): number {
  const dateMs = Date.now();
  if (Math.abs(originMs + performance.now() - dateMs) > clockStepMs) {
    originMs = dateMs - performance.now();
  }
  return originMs + performance.now();
}

/** This moment in nanoseconds since the epoch, CRI's unit for timestamps. */
export function nowNs(): bigint {
  const ms = nowMs();
  return BigInt(Math.trunc(ms)) * 1_000_000n + BigInt(Math.trunc((ms % 1) * 1e6));
}
