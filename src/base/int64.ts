// Converts int64 values: messages have Long, other code has bigint, which protobufjs would encode as 0.
import Long from "long";

/** Converts an integer for an int64 or uint64 field of a message. @throws RangeError for a fraction. */
export function toLong(value: bigint | number): Long {
  return Long.fromBigInt(BigInt(value));
}

/** Converts an int64 field of a decoded message; an unset one is 0. */
export function toBigInt(value: Long | number | null | undefined): bigint {
  if (value === null || value === undefined) return 0n;
  return typeof value === "number" ? BigInt(value) : value.toBigInt();
}
