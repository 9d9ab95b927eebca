// Tests descriptors as streams: FIFOs and sockets, at the pace of the slower side, and ends of every kind.
import { afterAll, describe, expect, test } from "bun:test";
import { constants, mkdtempSync, rmSync } from "node:fs";
import { createConnection, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ByteStream } from "../../../src/sys/byte_stream.ts";
import { mkfifo } from "../../../src/sys/path.ts";
import { Descriptor } from "../../../src/sys/descriptor.ts";
import { Poller } from "../../../src/sys/poller.ts";
import { accept, connectTcp, listenTcp, tcpSocket } from "../../../src/sys/tcp.ts";

const poller = new Poller();
const folder = mkdtempSync(join(tmpdir(), "isulad-byte-stream-"));
afterAll(() => {
  poller[Symbol.dispose]();
  rmSync(folder, { recursive: true });
});

let count = 0;

/** Both ends of a FIFO. */
function fifo(): { reader: ByteStream; writer: ByteStream } {
  const path = join(folder, `fifo${count++}`);
  mkfifo(path, 0o600);
  const { O_RDONLY, O_WRONLY, O_NONBLOCK } = constants;
  const reader = new ByteStream(Descriptor.open(path, O_RDONLY | O_NONBLOCK), poller);
  return { reader, writer: new ByteStream(Descriptor.open(path, O_WRONLY | O_NONBLOCK), poller) };
}

/** A node socket and our end of its connection. */
async function connection(): Promise<{ node: Socket; ours: ByteStream }> {
  const { listener, port } = listenTcp("127.0.0.1", 0);
  const node = createConnection({ port, host: "127.0.0.1", allowHalfOpen: true });
  node.on("error", () => {});
  await poller.readable(listener);
  const ours = new ByteStream(accept(listener)!, poller);
  poller.forget(listener);
  listener.close();
  return { node, ours };
}

function hungUp(stream: ByteStream): Promise<string> {
  return new Promise((resolve) => stream.onHangup(() => resolve("gone")));
}

async function all(stream: ByteStream): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of stream.chunks()) chunks.push(chunk);
  return Buffer.concat(chunks);
}

describe("a FIFO", () => {
  test("carries much more than it holds, unmixed, to its end", async () => {
    const { reader, writer } = fifo();
    const parts = Array.from({ length: 100 }, (_, index) =>
      Buffer.alloc(10_007 * (index % 7), index),
    );
    const sent = Promise.all(parts.map((part) => writer.send(Buffer.from("|"), part)));
    void sent.then(() => writer.close());
    const expected = Buffer.concat(parts.flatMap((part) => [Buffer.from("|"), part]));
    expect((await all(reader)).equals(expected)).toBe(true);
    reader.close();
  });

  test("that nobody reads any more fails what is sent", async () => {
    const { reader, writer } = fifo();
    const sent = writer.send(Buffer.alloc(1 << 20));
    await Bun.sleep(20);
    reader.close();
    expect(await sent.catch((error: NodeJS.ErrnoException) => error.code)).toBe("EPIPE");
    writer.close();
  });

  test("that is closed here ends what waits for it", async () => {
    const { reader, writer } = fifo();
    const read = reader.read(Buffer.alloc(10));
    const sent = writer.send(Buffer.alloc(1 << 20)).catch((error: Error) => error.message);
    await Bun.sleep(20);
    reader.readNow(Buffer.alloc(1 << 20));
    reader.close();
    writer.close();
    await read;
    expect(await sent).toBeString();
  });
});

describe("a socket", () => {
  test("tells of a peer that ends, also while nothing is read from it", async () => {
    for (const end of ["end", "destroy", "resetAndDestroy"] as const) {
      const { node, ours } = await connection();
      const gone = hungUp(ours);
      node.write("never read");
      await Bun.sleep(20);
      node[end]();
      expect(await gone).toBe("gone");
      ours.close();
      node.destroy();
    }
  });

  test("half-closes: what the peer answers is read to its end", async () => {
    const { node, ours } = await connection();
    node.once("end", () => node.end("answer")).resume();
    await ours.send(Buffer.from("question"));
    await ours.endWrite();
    expect((await all(ours)).toString()).toBe("answer");
    ours.close();
  });

  test("of a number that was used before is not told of the earlier one's end", async () => {
    for (let round = 0; round < 50; round++) {
      const { node, ours } = await connection();
      ours.onHangup(() => {});
      node.destroy();
      ours.close();
      const next = await connection();
      let told = false;
      next.ours.onHangup(() => (told = true));
      await Bun.sleep(1);
      expect(told).toBe(false);
      next.ours.close();
      next.node.destroy();
    }
  });

  test("connects to localhost, and says when nobody listens", async () => {
    const { listener, port } = listenTcp("127.0.0.1", 0);
    const socket = new ByteStream(tcpSocket("IPv4"), poller);
    const { signal } = new AbortController();
    await connectTcp(socket.descriptor, { address: "127.0.0.1", port, poller, signal });
    socket.close();
    listener.close();
    const other = new ByteStream(tcpSocket("IPv4"), poller);
    const refused = connectTcp(other.descriptor, { address: "127.0.0.1", port, poller, signal });
    expect(await refused.catch((error: NodeJS.ErrnoException) => error.code)).toBe("ECONNREFUSED");
    other.close();
  });
});
