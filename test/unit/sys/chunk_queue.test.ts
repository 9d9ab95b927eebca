// Tests that neither side of a queue waits for the other once one of them has ended it.
import { expect, test } from "bun:test";
import { ChunkQueue, QueueBudget } from "../../../src/sys/chunk_queue.ts";

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
