// Copies output from a descriptor to a client.
import { setTimeout as sleep } from "node:timers/promises";
import type { ByteStream } from "../sys/byte_stream.ts";

/** How long after the process's exit to wait for output of children that keep the stream open. */
export const lingerMs = 100;
/** How long to wait where a shim copies the output, which may lag behind the exit. */
export const shimLingerMs = 2_000;
const chunkBytes = 256 << 10;
/** Free buffers: an idle stream holds none. */
const spare: Buffer[] = [];
const spareMax = 4;

type End = { exited: Promise<unknown>; lingerMs: number };

/**
 * Copies until the source ends or, where `end` is given, until it has waited for lingerMs after `exited` and there is
 * nothing to read. Reads nothing while `write` waits for a slow client (backpressure), which does not count as waiting.
 */
export async function copyOutput(
  source: ByteStream,
  write: (bytes: Uint8Array) => Promise<void>,
  end?: End,
): Promise<void> {
  const linger = end === undefined ? undefined : new Linger(end);
  for (;;) {
    const isLast = linger?.isOver === true;
    const state = await copyNow(source, write);
    if (state === "end" || (state === "empty" && isLast)) return;
    if (state === "more") await new Promise((resolve) => setImmediate(resolve)); // lets other calls run
    else if (linger === undefined) await source.readable();
    else await linger.wait(source);
  }
}

/** Bounds the time that is spent in waiting for input after an exit. */
class Linger {
  readonly #exited: Promise<unknown>;
  #hasExited = false;
  #leftMs: number;

  constructor({ exited, lingerMs }: End) {
    this.#leftMs = lingerMs;
    // A failure is reported by its other awaiters.
    this.#exited = exited.catch(() => {}).then(() => (this.#hasExited = true));
  }

  get isOver(): boolean {
    return this.#hasExited && this.#leftMs <= 0;
  }

  async wait(source: ByteStream): Promise<void> {
    if (!this.#hasExited) {
      await Promise.race([source.readable(), this.#exited]);
      return;
    }
    const begin = performance.now();
    const enough = new AbortController();
    const late = sleep(this.#leftMs, undefined, { signal: enough.signal }).catch(() => {});
    await Promise.race([source.readable(), late]);
    enough.abort();
    this.#leftMs -= performance.now() - begin;
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
