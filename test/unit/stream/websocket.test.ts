// Tests WebSocket frames of both sides in chunks, and those that RFC 6455 forbids.
import { describe, expect, test } from "bun:test";
import { acceptKey, tunnel, WebSocketConnection, type Piece } from "../../../src/sys/websocket.ts";
import { collected, played, seeded, wirePair } from "../../stream/wires.ts";

/** A client's frame. */
function frame(
  first: number,
  payload: string | Buffer,
  options: { masked?: boolean } = {},
): Buffer {
  const bytes = Buffer.from(payload);
  const masked = options.masked ?? true;
  const bit = masked ? 0x80 : 0;
  const head =
    bytes.length < 126
      ? [first, bit | bytes.length]
      : [first, bit | 126, bytes.length >> 8, bytes.length & 255];
  if (!masked) return Buffer.concat([Buffer.from(head), bytes]);
  const mask = Buffer.from([0x11, 0xaa, 0x03, 0xfe]);
  return Buffer.concat([Buffer.from(head), mask, bytes.map((byte, at) => byte ^ mask[at & 3]!)]);
}

async function messages(pieces: AsyncIterable<Piece>): Promise<string[]> {
  const all: string[] = [];
  for await (const { first, bytes } of pieces) {
    if (first) all.push(bytes.toString());
    else all[all.length - 1] += bytes.toString();
  }
  return all;
}

test("the key's answer is that of RFC 6455, section 1.3", () => {
  expect(acceptKey("dGhlIHNhbXBsZSBub25jZQ==")).toBe("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
});

describe("a server", () => {
  const stream = Buffer.concat([
    frame(0x82, "one"),
    frame(0x02, "tw"),
    frame(0x89, "ping"),
    frame(0x80, "o".repeat(300)),
    frame(0x82, ""),
    frame(0x81, "text"),
    frame(0x01, "in "),
    frame(0x80, ""),
    frame(0x82, "last"),
    frame(0x88, Buffer.from([3, 232])),
    frame(0x82, "after the end"),
  ]);

  test.each([1, 2, 3, 5, 64, 1000])(
    "reads messages that come in pieces of %d bytes",
    async (size) => {
      const wire = played(stream, size);
      const read = await messages(new WebSocketConnection(wire, "server").pieces());
      expect(read).toEqual(["one", `tw${"o".repeat(300)}`, "", "text", "in ", "last"]);
      expect(wire.sent[0]).toEqual(frame(0x8a, "ping", { masked: false }));
      expect(wire.sent[1]).toEqual(frame(0x88, Buffer.from([3, 232]), { masked: false }));
    },
  );

  test.each([1, 3, 4, 7, 13, 4096])(
    "unmasks bytes at any address, in pieces of %d",
    async (size) => {
      const payloads = Array.from({ length: 40 }, (_, length) =>
        Buffer.from(Array.from({ length }, (_, index) => (index * 37 + length) & 255)),
      );
      const wire = played(Buffer.concat(payloads.map((payload) => frame(0x82, payload))), size);
      const read: Buffer[] = [];
      for await (const { first, bytes } of new WebSocketConnection(wire, "server").pieces()) {
        if (first) read.push(Buffer.from(bytes));
        else read.push(Buffer.concat([read.pop()!, bytes]));
      }
      expect(read).toEqual(payloads);
    },
  );

  const wrong: [string, Buffer, number, string][] = [
    ["without a mask", frame(0x82, "x", { masked: false }), 1002, "without a mask"],
    ["with an extension", frame(0xc2, "x"), 1002, "extension"],
    ["of an unknown kind", frame(0x83, "x"), 1002, "opcode 3"],
    ["that continues nothing", frame(0x80, "x"), 1002, "continuation"],
    [
      "inside another's message",
      Buffer.concat([frame(0x02, "x"), frame(0x82, "y")]),
      1002,
      "inside",
    ],
    [
      "of text inside another's message",
      Buffer.concat([frame(0x02, "x"), frame(0x81, "y")]),
      1002,
      "inside",
    ],
    ["of control that is long", frame(0x89, "x".repeat(126)), 1002, "long control"],
    ["of control in parts", frame(0x09, "x"), 1002, "long control"],
  ];
  test.each(wrong)("refuses a frame %s", async (_, bytes, code, message) => {
    const wire = played(bytes);
    const pieces = new WebSocketConnection(wire, "server").pieces();
    expect(messages(pieces)).rejects.toThrow(message);
    await Bun.sleep(0);
    expect(wire.sent.at(-1)!.readUInt16BE(2)).toBe(code);
  });

  test("refuses a length beyond safe integers", () => {
    const huge = Buffer.from([0x82, 0xff, 255, 255, 255, 255, 255, 255, 255, 255, 1, 2, 3, 4]);
    const pieces = new WebSocketConnection(played(huge), "server").pieces();
    expect(messages(pieces)).rejects.toThrow("without end");
  });

  test("random bytes end it with an error or normally", async () => {
    const seed = 4_711;
    const random = seeded(seed);
    for (let round = 0; round < 500; round++) {
      const bytes = Buffer.from(Array.from({ length: random(300) }, () => random(256)));
      if (bytes.length > 2) bytes.set([0x82, 0x80 | random(128)], 0);
      const pieces = new WebSocketConnection(played(bytes, 1 + random(50)), "server").pieces();
      const end = await messages(pieces).catch((error: unknown) => error);
      if (!(Array.isArray(end) || end instanceof Error)) throw new Error(`seed ${seed}`);
    }
  });
});

test.each([
  ["client", "server"],
  ["server", "client"],
] as const)("a %s is understood by a %s, at every length of a head", async (from, to) => {
  const [one, other] = wirePair();
  const sender = new WebSocketConnection(one, from);
  const read = messages(new WebSocketConnection(other, to).pieces());
  const texts = ["", "a", "b".repeat(125), "c".repeat(126), "d".repeat(65_535), "e".repeat(65_536)];
  for (const text of texts) {
    await sender.send(Buffer.from(text.slice(0, 1)), Buffer.from(text.slice(1)));
  }
  await sender.close(1000);
  expect(await read).toEqual(texts);
});

test("a tunnel carries another protocol's bytes, independent of message boundaries", async () => {
  const [one, other] = wirePair();
  const client = new WebSocketConnection(one, "client");
  const inside = tunnel(new WebSocketConnection(other, "server"), () => other.close());
  const read = collected(inside.chunks());
  for (const text of ["some", "", "thing", " else"]) await client.send(Buffer.from(text));
  await client.close(1000);
  expect(await read).toBe("something else");
});
