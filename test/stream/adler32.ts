// Computes zlib's checksum, by which a dictionary is known.

/** zlib's checksum (RFC 1950, section 9), by which a dictionary is known. */
export function adler32(bytes: Uint8Array): number {
  let [low, high] = [1, 0];
  for (const byte of bytes) {
    low = (low + byte) % 65_521;
    high = (high + low) % 65_521;
  }
  return high * 65_536 + low;
}
