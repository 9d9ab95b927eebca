// Tests that few pipes are larger than usual: all of root's pipes share a budget of the kernel.
import { expect, test } from "bun:test";
import { pipe, pipeSize, setPipeSize } from "../../../src/sys/descriptor.ts";
import {
  largePipeBytes,
  LargePipes,
  shrinkLeft,
  usualPipeBytes,
} from "../../../src/sys/large_pipes.ts";
import { LargeFifos } from "../../../src/monitor_log/large_fifos.ts";

test("at most an eighth of root's pages are in large pipes, those of all threads together", () => {
  using pipes = new DisposableStack();
  const readers = Array.from({ length: 12 }, () => pipes.use(pipe()).reader);
  const first = new LargePipes(undefined, 16_384);
  const second = new LargePipes(first.shared, 16_384);
  const enlarged = readers.filter((reader, index) =>
    (index % 2 === 0 ? first : second).enlarge(reader),
  );
  expect(enlarged).toHaveLength(8);
  expect(readers.map((reader) => pipeSize(reader))).toEqual([
    ...Array.from({ length: 8 }, () => largePipeBytes),
    ...Array.from({ length: 4 }, () => usualPipeBytes),
  ]);
  expect(second.shrink(readers[0]!)).toBe(true);
  expect(first.enlarge(readers[8]!)).toBe(true);
  expect(first.count).toBe(8);
});

test("a pipe that holds more than fits is made small later", async () => {
  using made = pipe();
  setPipeSize(made.writer, largePipeBytes);
  await Bun.write(Bun.file(made.writer.fd), Buffer.alloc(usualPipeBytes + 1));
  shrinkLeft(made.reader);
  const large = new LargePipes();
  const fifos = new LargeFifos(large);
  fifos.resume(made.reader, 0);
  expect([large.count, fifos.shrink(2_000)]).toEqual([1, 2_000]);
  await Bun.file(made.reader.fd).slice(0, usualPipeBytes).arrayBuffer();
  expect([fifos.shrink(4_000), large.count]).toEqual([undefined, 0]);
  expect(pipeSize(made.reader)).toBe(usualPipeBytes);
});

test("a FIFO is large while it is filled, unless its program has resized it", () => {
  using made = pipe();
  const large = new LargePipes();
  const fifos = new LargeFifos(large);
  fifos.filled(made.reader, usualPipeBytes, 0);
  expect(pipeSize(made.reader)).toBe(largePipeBytes);
  fifos.filled(made.reader, 2 * usualPipeBytes, 1_500);
  fifos.filled(made.reader, usualPipeBytes, 2_500);
  expect(fifos.shrink(3_000)).toBe(2_000);
  expect(fifos.shrink(3_500)).toBeUndefined();
  expect([pipeSize(made.reader), large.count]).toEqual([usualPipeBytes, 0]);
  setPipeSize(made.reader, 4_096);
  fifos.filled(made.reader, 4_096, 4_000);
  expect(pipeSize(made.reader)).toBe(4_096);
});

test("a large FIFO that is closed gives its room back, also to others that keep it open", () => {
  using made = pipe();
  const large = new LargePipes();
  const fifos = new LargeFifos(large);
  fifos.filled(made.reader, usualPipeBytes, 0);
  fifos.close(made.reader);
  expect([pipeSize(made.writer), large.count]).toEqual([usualPipeBytes, 0]);
  fifos.close(made.reader);
  expect(large.count).toBe(0);
});
