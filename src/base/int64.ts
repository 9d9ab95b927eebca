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
