// Makes wires for tests: two ends of one connection in memory, and one that plays what it is given.
import type { Wire } from "../../src/sys/byte_stream.ts";
import { ChunkQueue } from "../../src/sys/chunk_queue.ts";

/** Each end's sends are the other's chunks; closing one ends both. */
export function wirePair(): [Wire, Wire] {
  const [one, other] = [new ChunkQueue(), new ChunkQueue()];
  const close = () => {
    one.end();
    other.end();
  };
  return [end(one, other, close), end(other, one, close)];
}

function end(incoming: ChunkQueue, outgoing: ChunkQueue, close: () => void): Wire {
  return {
    chunks: () => incoming.chunks(),
    send: async (...parts) => outgoing.put(Buffer.concat(parts)),
    close,
  };
}

/** What was sent through it, one Buffer a send. */
export type Played = Wire & { sent: Buffer[] };

/** Gives out bytes in pieces of `size`, and keeps what is sent. */
export function played(bytes: Uint8Array, size = bytes.length): Played {
  const sent: Buffer[] = [];
  return {
    sent,
    async *chunks() {
      for (let at = 0; at < bytes.length; at += size) {
        yield Buffer.from(bytes.subarray(at, at + size));
      }
    },
    send: async (...parts) => void sent.push(Buffer.concat(parts)),
    close: () => {},
  };
}

export async function collected(chunks: AsyncIterable<Uint8Array>): Promise<string> {
  const all: Uint8Array[] = [];
  for await (const chunk of chunks) all.push(chunk);
  return Buffer.concat(all).toString();
}

/** Numbers from 0 to below `limit` that are the same at each run. */
export function seeded(seed: number): (limit: number) => number {
  let state = seed;
  return (limit) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * limit);
  };
}
