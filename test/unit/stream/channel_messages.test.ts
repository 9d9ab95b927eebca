// Tests numbered channels in WebSocket messages: raw and base64, in chunks.
import { describe, expect, test } from "bun:test";
import { Base64Decoder, ChannelMessages } from "../../../src/stream/channel_messages.ts";
import { WebSocketConnection } from "../../../src/sys/websocket.ts";
import { played, seeded, wirePair } from "../../stream/wires.ts";

const seed = 20_261_122;

function pair(protocol: string) {
  const [ours, theirs] = wirePair();
  const server = new ChannelMessages(new WebSocketConnection(ours, "server"), protocol);
  return { server, client: new WebSocketConnection(theirs, "client") };
}

async function channels(messages: ChannelMessages): Promise<Map<number, Buffer>> {
  const all = new Map<number, Buffer>();
  for await (const { channel, bytes } of messages.pieces()) {
    all.set(channel, Buffer.concat([all.get(channel) ?? Buffer.alloc(0), bytes]));
  }
  return all;
}

test.each([1, 2, 3, 4, 5, 7, 64, 1000])("base64 in pieces of %d bytes is decoded", (size) => {
  const random = seeded(seed);
  for (let length = 0; length < 200; length++) {
    const bytes = Buffer.from(Array.from({ length }, () => random(256)));
    const text = bytes.toString("base64").replaceAll(/(.{20})/g, "$1\r\n"); // Go skips these
    const decoder = new Base64Decoder();
    const decoded: Buffer[] = [];
    for (let at = 0; at < text.length; at += size) {
      decoded.push(decoder.push(Buffer.from(text.slice(at, at + size))));
    }
    decoder.end();
    if (!Buffer.concat(decoded).equals(bytes)) throw new Error(`seed ${seed}, length ${length}`);
  }
});

test.each([
  "Zm9",
  "Zg=",
  "Z",
  "Zm9v=",
  "Zg==Zg==",
  "Zg==Z",
  "Zm9v!",
  "=",
  "Zm-_",
  "Zm9\u00e9",
  "Z=g=",
])("%j is refused as base64, in one piece or in many", (text) => {
  const decode = (size: number) => {
    const decoder = new Base64Decoder();
    const bytes = Buffer.from(text, "latin1");
    for (let at = 0; at < bytes.length; at += size) decoder.push(bytes.subarray(at, at + size));
    decoder.end();
  };
  expect(() => decode(100)).toThrow("not valid base64");
  expect(() => decode(1)).toThrow("not valid base64");
});

describe.each(["channel.k8s.io", "v4.channel.k8s.io", "v5.channel.k8s.io", ""])(
  "the raw form (%s)",
  (protocol) => {
    test("sends binary messages, an empty one for no bytes", async () => {
      const wire = played(Buffer.alloc(0));
      const messages = new ChannelMessages(new WebSocketConnection(wire, "server"), protocol);
      await messages.send(1, Buffer.alloc(0));
      await messages.send(2, Buffer.from([0, 255]));
      expect(wire.sent).toEqual([Buffer.from([0x82, 1, 1]), Buffer.from([0x82, 3, 2, 0, 255])]);
    });

    test("accepts binary and text messages, and skips empty ones", async () => {
      const { server, client } = pair(protocol);
      await client.send(Buffer.from([0, 1, 2]));
      await client.send();
      await client.sendText("\u0000text");
      await client.send(Buffer.from([4]), Buffer.from("size"));
      await client.close(1000);
      const all = await channels(server);
      expect(all.get(0)).toEqual(Buffer.from("\u0001\u0002text"));
      expect(all.get(4)).toEqual(Buffer.from("size"));
    });
  },
);

describe.each(["base64.channel.k8s.io", "v4.base64.channel.k8s.io"])("%s", (protocol) => {
  test("sends text messages, the channel alone for no bytes", async () => {
    const wire = played(Buffer.alloc(0));
    const messages = new ChannelMessages(new WebSocketConnection(wire, "server"), protocol);
    await messages.send(1, Buffer.alloc(0));
    await messages.send(2, Buffer.from([0, 255]).subarray(1));
    expect(wire.sent).toEqual([
      Buffer.from("\u0081\u00011", "latin1"),
      Buffer.from("\u0081\u00052/w==", "latin1"),
    ]);
  });

  test("accepts messages of several MB, text and binary", async () => {
    const { server, client } = pair(protocol);
    const random = seeded(seed);
    const bytes = Buffer.from(Array.from({ length: 3_000_001 }, () => random(256)));
    const all = channels(server);
    await client.sendText(`0${bytes.toString("base64")}`);
    await client.send(Buffer.from("0"), Buffer.from(bytes.toString("base64")));
    await client.close(1000);
    expect((await all).get(0)!.equals(Buffer.concat([bytes, bytes]))).toBe(true);
  });

  test.each(["0Zm9", "0Zm!v"])("closes with 1007 for the invalid base64 %s", async (text) => {
    const frame = [0x81, 0x80 | text.length, 0, 0, 0, 0, ...Buffer.from(text)];
    const wire = played(Buffer.from(frame));
    const messages = new ChannelMessages(new WebSocketConnection(wire, "server"), protocol);
    const error = await channels(messages).catch((error: Error) => error.message);
    expect(error).toContain("not valid base64");
    expect(wire.sent).toEqual([Buffer.from([0x88, 2, 1007 >> 8, 1007 & 255])]);
  });
});
