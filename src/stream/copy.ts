// Bytes from a descriptor to a client.
import { setTimeout as sleep } from "node:timers/promises";
import type { ByteStream } from "../sys/byte_stream.ts";

/** After its process's exit, how long output is awaited from children that keep it open. */
const lingerMs = 100;
const chunkBytes = 256 << 10;
/** Those that no copy uses now: a stream that is idle has none. */
const spare: Buffer[] = [];
const spareMax = 4;

/**
 * Copies until the source's end, or until it is empty a moment after `exited`. `write` waits while the
 * client is slow, and then nothing is read.
 */
export async function copyOutput(
  source: ByteStream,
  write: (bytes: Uint8Array) => Promise<void>,
  exited: Promise<unknown>,
): Promise<void> {
  let late = false;
  const ended = exited.catch(() => {}); // told to who waits for it
  const lastCall = ended.then(() => sleep(lingerMs)).then(() => (late = true));
  for (;;) {
    const wasLate = late;
    const state = await copyNow(source, write);
    if (state === "end" || (state === "empty" && wasLate)) return;
    if (state === "empty") await Promise.race([source.readable(), lastCall]);
    else await new Promise((resolve) => setImmediate(resolve)); // calls are answered meanwhile
  }
}

async function copyNow(
  source: ByteStream,
  write: (bytes: Uint8Array) => Promise<void>,
): Promise<"more" | "empty" | "end"> {
  const buffer = spare.pop() ?? Buffer.allocUnsafeSlow(chunkBytes);
  try {
    const count = source.readNow(buffer);
    if (count <= 0) return count === 0 ? "end" : "empty";
    await write(buffer.subarray(0, count));
    return "more";
  } finally {
    if (spare.length < spareMax) spare.push(buffer);
  }
}
