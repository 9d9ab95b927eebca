// Tests SPDY/3.1: frames in chunks, headers in both zlib forms, streams, and invalid input.
import { describe, expect, test } from "bun:test";
import { constants, createDeflate } from "node:zlib";
import { adler32 } from "../../stream/adler32.ts";
import { SpdySession, type SpdyStream } from "../../../src/sys/spdy.ts";
import {
  controlFrame,
  dataHead,
  FrameReader,
  GOAWAY,
  openingFrame,
  PING,
} from "../../../src/sys/spdy_frames.ts";
import {
  HeaderReader,
  type Headers,
  HeaderWriter,
  spdyDictionary,
} from "../../../src/sys/spdy_headers.ts";
import { until } from "../../expect.ts";
import { collected, played, seeded, wirePair } from "../../stream/wires.ts";

/** Both sides of a session, and the streams that the server was told of. */
function sessions() {
  const [ours, theirs] = wirePair();
  const opened: SpdyStream[] = [];
  const server = new SpdySession(ours, (stream) => opened.push(stream));
  const client = new SpdySession(theirs, () => {});
  return { server, client, opened, ends: [server.run(), client.run()], close: () => ours.close() };
}

test("the dictionary is the specification's", () => {
  expect(spdyDictionary()).toHaveLength(1423);
  expect(adler32(spdyDictionary())).toBe(0xe3c6a7c2);
});

describe("headers", () => {
  test("written blocks are read back one after another", async () => {
    using reader = new HeaderReader();
    const writer = new HeaderWriter();
    const all: Headers[] = [{ streamtype: "error" }, {}, { streamtype: "stdin", port: "80" }];
    for (const headers of all) {
      expect(await reader.read(writer.block(headers))).toEqual(headers);
    }
  });

  test("blocks compressed with the dictionary are read, with names in lower case", async () => {
    using reader = new HeaderReader();
    const deflate = createDeflate({ dictionary: spdyDictionary() });
    const chunks: Buffer[] = [];
    deflate.on("data", (chunk: Buffer) => chunks.push(chunk));
    for (const port of ["80", "8080"]) {
      const plain = new HeaderWriter().block({ port }).subarray(7, -5);
      plain.write("Port", 8); // a Go client's names are in any case
      await new Promise<void>((resolve) => {
        deflate.write(plain);
        deflate.flush(constants.Z_SYNC_FLUSH, () => resolve());
      });
      expect(await reader.read(Buffer.concat(chunks.splice(0)))).toEqual({ port });
    }
  });

  test("invalid and truncated zlib is refused", async () => {
    using one = new HeaderReader();
    expect(one.read(Buffer.from("no zlib at all"))).rejects.toThrow();
    using other = new HeaderReader();
    const block = new HeaderWriter().block({ streamtype: "error" });
    block.writeUInt32BE(1000, 11); // the length of the name
    expect(other.read(block)).rejects.toThrow("cut off");
  });

  test("a block of more than 64 headers is refused", async () => {
    using reader = new HeaderReader();
    const many = Object.fromEntries(Array.from({ length: 65 }, (_, index) => [`n${index}`, ""]));
    expect(reader.read(new HeaderWriter().block(many))).rejects.toThrow("65 headers: at most 64");
  });

  test("a block that grows beyond 8 KiB is refused", async () => {
    using reader = new HeaderReader();
    const deflate = createDeflate({ dictionary: spdyDictionary() });
    const chunks: Buffer[] = [];
    deflate.on("data", (chunk: Buffer) => chunks.push(chunk));
    await new Promise<void>((resolve) => {
      deflate.write(Buffer.alloc(10 << 20));
      deflate.flush(constants.Z_SYNC_FLUSH, () => resolve());
    });
    expect(reader.read(Buffer.concat(chunks))).rejects.toThrow("8192 bytes");
  });
});

describe("frames", () => {
  const writer = new HeaderWriter();
  const frames = Buffer.concat([
    openingFrame(1, writer.block({ streamtype: "stdin" })),
    dataHead(1, 5, false),
    Buffer.from("hello"),
    controlFrame(PING, [2]),
    dataHead(1, 0, true),
  ]);

  test.each([1, 2, 3, 7, 8, 9, 13, 1000])("cut into pieces of %d bytes are the same", (size) => {
    const reader = new FrameReader();
    let data = "";
    const seen: string[] = [];
    for (let at = 0; at < frames.length; at += size) {
      for (const frame of reader.push(frames.subarray(at, at + size))) {
        if (frame.type === "data") data += frame.bytes.toString();
        if (frame.type === "control") seen.push(`control ${frame.kind} ${frame.payload.length}`);
        else if (frame.fin) seen.push(`end of ${frame.stream}`);
      }
    }
    expect(data).toBe("hello");
    expect(seen).toEqual(["control 1 49", "control 6 4", "end of 1"]);
  });

  test("a control frame over 64 KiB or of another version is refused before it is buffered", () => {
    const large = controlFrame(PING, [1]);
    large.writeUIntBE(70_000, 5, 3);
    expect(() => [...new FrameReader().push(large)]).toThrow("70000 bytes");
    const other = controlFrame(PING, [1]);
    other.writeUInt16BE(0x8002, 0);
    expect(() => [...new FrameReader().push(other)]).toThrow("version 2");
  });
});

describe("a session", () => {
  test("carries streams both ways, each to its own end", async () => {
    const { client, opened, ends, close } = sessions();
    const streams = await Promise.all(
      ["a", "b", "c"].map((name) => client.open({ streamtype: name })),
    );
    expect(opened.map(({ headers }) => headers["streamtype"])).toEqual(["a", "b", "c"]);
    for (const [index, stream] of streams.entries()) {
      await stream.write(Buffer.from(`to ${index}`));
      await stream.end();
      expect(await collected(opened[index]!.chunks())).toBe(`to ${index}`);
      await opened[index]!.write(Buffer.from(`from ${index}`));
      await opened[index]!.end();
      expect(await collected(stream.chunks())).toBe(`from ${index}`);
    }
    close();
    await Promise.all(ends);
  });

  test("a reset stream ends for both sides, the others continue", async () => {
    const { client, opened, ends, close } = sessions();
    const [one, other] = [await client.open({}), await client.open({})];
    await one.reset();
    expect(await collected(opened[0]!.chunks())).toBe("");
    expect(opened[0]!.gone.aborted).toBe(true);
    expect(one.write(Buffer.from("x"))).rejects.toThrow("has ended");
    await other.write(Buffer.from("still"));
    await other.end();
    expect(await collected(opened[1]!.chunks())).toBe("still");
    close();
    await Promise.all(ends);
  });

  test("a sender waits for a slow reader: buffers stay bounded", async () => {
    const { client, opened, ends, close } = sessions();
    const stream = await client.open({});
    let sent = 0;
    const sending = (async () => {
      for (let count = 0; count < 64; count++) {
        await stream.write(Buffer.alloc(64 << 10));
        sent += 64 << 10;
      }
      await stream.end();
    })();
    await Bun.sleep(50);
    expect(sent).toBeLessThan(1 << 20);
    expect((await collected(opened[0]!.chunks())).length).toBe(4 << 20);
    await sending;
    close();
    await Promise.all(ends);
  });

  test("the end of the connection ends reads and fails opens", async () => {
    const { client, opened, ends, close } = sessions();
    const stream = await client.open({});
    const read = collected(opened[0]!.chunks());
    close();
    await Promise.all(ends);
    expect(await read).toBe("");
    expect(stream.gone.aborted).toBe(true);
  });

  test("streams that nobody reads hold 2 MiB together, and the others go on when one is discarded", async () => {
    const { client, opened, ends, close } = sessions();
    const streams = [];
    for (let count = 0; count < 20; count++) streams.push(await client.open({}));
    let sent = 0;
    const part = Buffer.alloc(200 << 10);
    const sending = (async () => {
      for (const stream of streams) await stream.write(part).then(() => sent++);
    })();
    await until("the queues are full", () => sent >= 10);
    await Bun.sleep(20);
    expect(sent).toBeLessThan(14);
    for (const { inbox } of opened) inbox.discard();
    await sending;
    close();
    await Promise.all(ends);
  });

  test("streams are refused when the headers of those that are open have 256 KiB", async () => {
    const { client, opened, ends, close } = sessions();
    const large = { streamtype: "x".repeat(8_000) };
    const refused: string[] = [];
    for (let count = 0; count < 40; count++) {
      await client.open(large).catch((error: unknown) => refused.push(String(error)));
    }
    expect(opened).toHaveLength(32);
    await opened[0]!.reset();
    await client.open(large);
    expect(refused).toHaveLength(8);
    close();
    await Promise.all(ends);
  });

  test("a header block over the limit ends it with GOAWAY", async () => {
    const block = new HeaderWriter().block({ name: "x".repeat(9_000) });
    const wire = played(openingFrame(1, block));
    expect(await new SpdySession(wire, () => {}).run().then(String, String)).toContain(
      "8192 bytes",
    );
    expect(wire.sent).toEqual([controlFrame(GOAWAY, [0, 1])]);
  });

  test("more than 1000 streams at a time are refused, one by one", async () => {
    const { client, opened, ends, close } = sessions();
    for (let count = 0; count < 1000; count++) await client.open({});
    expect(client.open({})).rejects.toThrow("refused");
    await Bun.sleep(0);
    expect(opened).toHaveLength(1000);
    close();
    await Promise.all(ends);
  });

  test("a ping is answered", async () => {
    const wire = played(controlFrame(PING, [7]));
    await new SpdySession(wire, () => {}).run();
    expect(wire.sent).toEqual([controlFrame(PING, [7])]);
  });

  test("random bytes end it with an error or normally", async () => {
    const seed = 20_261_121;
    const random = seeded(seed);
    for (let round = 0; round < 300; round++) {
      const bytes = Buffer.from(Array.from({ length: random(400) }, () => random(256)));
      if (round % 2 === 0 && bytes.length > 8) bytes.set([0x80, 3, 0, random(10), 0, 0, 0], 0);
      const wire = played(bytes, 1 + random(64));
      const end = await new SpdySession(wire, () => {}).run().then(
        () => "end",
        (error: unknown) => error,
      );
      if (end !== "end" && !(end instanceof Error)) throw new Error(`seed ${seed}: ${String(end)}`);
    }
  });
});
