// Copies output from a descriptor to a client.
import { setTimeout as sleep } from "node:timers/promises";
import type { ByteStream } from "../sys/byte_stream.ts";

/** After the process's exit, the wait for output of children that keep the stream open. */
export const lingerMs = 100;
/** The same where a shim copies the output, which may lag behind the exit. */
export const shimLingerMs = 2_000;
const chunkBytes = 256 << 10;
/** Free buffers: an idle stream holds none. */
const spare: Buffer[] = [];
const spareMax = 4;

/**
 * Copies until the source ends, or is empty lingerMs after `exited` where `end` is given. Reads nothing while `write`
 * waits for a slow client (backpressure).
 */
export async function copyOutput(
  source: ByteStream,
  write: (bytes: Uint8Array) => Promise<void>,
  end?: { exited: Promise<unknown>; lingerMs: number },
): Promise<void> {
  let late = false;
  const lastCall = end?.exited
    .catch(() => {}) // reported by its other awaiters
    .then(() => sleep(end.lingerMs))
    .then(() => (late = true));
  for (;;) {
    const wasLate = late;
    const state = await copyNow(source, write);
    if (state === "end" || (state === "empty" && wasLate)) return;
    if (state === "empty") {
      await (lastCall === undefined
        ? source.readable()
        : Promise.race([source.readable(), lastCall]));
    } else {
      await new Promise((resolve) => setImmediate(resolve)); // lets other calls run
    }
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
