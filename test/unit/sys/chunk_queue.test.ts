// Tests that neither side of a queue waits for the other once one of them has ended it.
import { expect, test } from "bun:test";
import { ChunkQueue, queuedBytes, QueueBudget } from "../../../src/sys/chunk_queue.ts";

const full = Buffer.alloc(256 << 10);

/** Reads all that is left. */
async function bytesIn(queue: ChunkQueue): Promise<number> {
  let bytes = 0;
  for await (const chunk of queue.chunks()) bytes += chunk.length;
  return bytes;
}

test("put waits while the queue is full", async () => {
  const queue = new ChunkQueue();
  const put = queue.put(full).then(() => "put");
  expect(await Promise.race([put, Bun.sleep(1).then(() => "waits")])).toBe("waits");
  const chunks = queue.chunks();
  await chunks.next();
  expect(await put).toBe("put");
});

test("end releases a put that waits, and keeps what is queued", async () => {
  const queue = new ChunkQueue();
  const puts = [queue.put(full), queue.put(full)];
  queue.end();
  await Promise.all(puts);
  await queue.put(full);
  expect(await bytesIn(queue)).toBe(2 * full.length);
});

test("discard releases a put and a reader that wait, and drops what is queued", async () => {
  const queue = new ChunkQueue();
  const put = queue.put(full);
  queue.discard();
  await put;
  await queue.put(full);
  expect(await bytesIn(queue)).toBe(0);
  const empty = new ChunkQueue();
  const read = bytesIn(empty);
  empty.discard();
  expect(await read).toBe(0);
});

test("queues with one budget wait for each other, and not for one that has ended", async () => {
  const budget = new QueueBudget(2 * full.length);
  const [one, other, third] = [1, 2, 3].map(() => new ChunkQueue(budget)) as [
    ChunkQueue,
    ChunkQueue,
    ChunkQueue,
  ];
  const part = full.subarray(0, 200 << 10);
  await one.put(part);
  await other.put(part);
  const put = third.put(part).then(() => "put");
  expect(await Promise.race([put, Bun.sleep(1).then(() => "waits")])).toBe("waits");
  one.discard();
  expect(await put).toBe("put");
  const last = other.put(part).then(() => "put");
  other.end();
  expect(await last).toBe("put");
});

test("a reader that leaves releases a put that waits", async () => {
  const queue = new ChunkQueue();
  const puts = [queue.put(full), queue.put(full), queue.put(full)];
  for await (const _ of queue.chunks()) break;
  await Promise.all(puts);
});

test("a thousand full queues hold little together, and an empty one takes a chunk at once", async () => {
  const chunk = Buffer.alloc(8 << 10);
  const before = queuedBytes().bytes; // of other tests
  const queues = Array.from({ length: 1000 }, () => new ChunkQueue());
  const full = new Set<ChunkQueue>();
  for (let round = 0; round < 32; round++) {
    for (const queue of queues) {
      if (full.has(queue)) continue;
      full.add(queue);
      queue.put(chunk).then(() => full.delete(queue), fail);
    }
    await Bun.sleep(0);
  }
  const { bytes, bytesMax } = queuedBytes();
  expect(bytesMax).toBeLessThanOrEqual(16 << 20);
  expect(bytes - before).toBeLessThan(25 << 20); // each had 256 KiB before
  const other = new ChunkQueue();
  await other.put(chunk);
  for (const queue of [...queues, other]) queue.discard();
  expect(queuedBytes().bytes).toBeLessThanOrEqual(before);
});

test("what nobody reads of a queue that is garbage counts no longer", async () => {
  const before = queuedBytes().bytes;
  const leave = async () => {
    const queue = new ChunkQueue();
    await queue.put(Buffer.alloc(100_000));
    queue.end();
  };
  await leave();
  for (let tries = 0; queuedBytes().bytes > before && tries < 100; tries++) {
    Bun.gc(true);
    await Bun.sleep(10);
  }
  expect(queuedBytes().bytes).toBeLessThanOrEqual(before);
});

test("a queue alone holds 256 KiB", async () => {
  const queue = new ChunkQueue();
  for (let count = 0; count < 3; count++) await queue.put(Buffer.alloc(64 << 10));
  queue.discard();
});

function fail(error: unknown): never {
  throw error;
}
