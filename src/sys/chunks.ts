// Reads a file in chunks, and frees chunks once they are used, for jobs that stream many megabytes.
import { readSync } from "node:fs";
import type { Descriptor } from "./descriptor.ts";

/** Of a chunk, in bytes. */
export const chunkSize = 256 << 10;

/**
 * Frees the memory of a chunk that nothing refers to any more; a chunk that is only a part of its buffer stays.
 * Decision: the garbage collector frees chunks only after tens of megabytes, so each chunk would take new pages,
 * whose first use (a page fault, in guests also the hypervisor's) costs more than reading and unpacking them.
 */
export function freeChunk({ buffer, byteLength }: Uint8Array): void {
  if (buffer instanceof ArrayBuffer && byteLength === buffer.byteLength) buffer.transfer(0);
}

/** Yields a range of a file; end: exclusive. Reads synchronously, which is faster where nothing else waits. */
export function* fileChunks(
  { fd }: Descriptor,
  { start, end }: { start: number; end: number } = { start: 0, end: Infinity },
): Generator<Buffer, void, undefined> {
  for (let at = start; at < end;) {
    const chunk = Buffer.allocUnsafeSlow(chunkSize);
    const count = readSync(fd, chunk, 0, Math.min(chunkSize, end - at), at);
    if (count === 0) return;
    at += count;
    yield count === chunkSize ? chunk : chunk.subarray(0, count);
  }
}
