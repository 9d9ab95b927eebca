// Tests that attached clients receive all output from now on, at their own pace, until they stop reading.
import { describe, expect, test } from "bun:test";
import { constants, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Sink, Tap } from "../../../src/monitor_log/tap.ts";
import { Descriptor, readNow } from "../../../src/sys/descriptor.ts";
import { mkfifo } from "../../../src/sys/path.ts";

/** A sink and the client's end of its FIFO. */
function client() {
  const folder = mkdtempSync(join(tmpdir(), "isulad-tap-"));
  const path = join(folder, "fifo");
  mkfifo(path, 0o600);
  const reader = Descriptor.open(path, constants.O_RDONLY | constants.O_NONBLOCK);
  const sink = new Sink(Descriptor.open(path, constants.O_WRONLY | constants.O_NONBLOCK));
  rmSync(folder, { recursive: true });
  const buffer = Buffer.alloc(1 << 20);
  const read = () => buffer.toString("utf8", 0, Math.max(0, readNow(reader, buffer)));
  return { sink, read, close: () => reader.close(), end: () => sink.descriptor.close() };
}

describe("a tap", () => {
  test("gives what is new, also of a line whose start stays in the stream", () => {
    const [tap, one, late] = [new Tap(), client(), client()];
    tap.offer(Buffer.from("old half"), 0);
    tap.add(one.sink);
    tap.offer(Buffer.from("old half, new"), 0);
    expect(one.read()).toBe(", new");
    tap.offer(Buffer.from("old half, new end\nnext"), 18);
    tap.add(late.sink);
    tap.offer(Buffer.from("next line\n"), 10);
    expect(one.read()).toBe(" end\nnext line\n");
    expect(late.read()).toBe(" line\n");
    [one, late].forEach(({ close, end }) => (close(), end()));
  });

  test("waits for a client that is behind, until it has caught up", () => {
    const [tap, one] = [new Tap(), client()];
    tap.add(one.sink);
    const data = Buffer.alloc(200_000, "x");
    tap.offer(data, data.length);
    expect(tap.waiting).toBe(true);
    let got = "";
    for (let round = 0; round < 10 && tap.waiting; round++) {
      got += one.read();
      one.sink.turn();
    }
    expect(tap.waiting).toBe(false);
    expect((got + one.read()).length).toBe(200_000);
    one.close();
    one.end();
  });

  test("waits for nobody when the container has ended; the client still gets all", () => {
    const [tap, one] = [new Tap(), client()];
    tap.add(one.sink);
    tap.ending();
    for (let round = 0; round < 4; round++) {
      expect(tap.waiting).toBe(false);
      tap.offer(Buffer.alloc(100_000, "x"), 100_000);
    }
    tap.end();
    let length = 0;
    for (let round = 0; round < 20 && !one.sink.done; round++) {
      length += one.read().length;
      one.sink.turn();
    }
    expect(length + one.read().length).toBe(400_000);
    expect(one.sink.done).toBe(true);
    one.close();
    one.end();
  });

  test("forgets a client that has gone", () => {
    const [tap, one] = [new Tap(), client()];
    tap.add(one.sink);
    one.close();
    tap.offer(Buffer.alloc(200_000), 200_000);
    expect([one.sink.done, tap.waiting]).toEqual([true, false]);
    one.end();
  });
});
