// protobufjs encodes a bigint as 0 without a word, so every int64 that leaves or enters a message
// passes here. Inside the project such values are bigint.
import Long from "long";

/** For an int64 or uint64 field of a message that is to be encoded. */
export function toLong(value: bigint | number): Long {
  return Long.fromBigInt(BigInt(value));
}

/** The value of an int64 field of a decoded message; an unset one is 0. */
export function toBigInt(value: Long | number | null | undefined): bigint {
  if (value === null || value === undefined) return 0n;
  return typeof value === "number" ? BigInt(value) : value.toBigInt();
}

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
