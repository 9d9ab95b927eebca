// Tests that frames without end, which need no answer, leave time for everything else.
import { expect, test } from "bun:test";
import type { Wire } from "../../../src/sys/byte_stream.ts";
import { SpdySession } from "../../../src/sys/spdy.ts";
import { controlFrame, dataHead, PING } from "../../../src/sys/spdy_frames.ts";
import { WebSocketConnection } from "../../../src/sys/websocket.ts";
import { websocketChannels } from "../../../src/stream/websocket_channels.ts";

const chunkBytes = 64 << 10;

/** Sends the same frames at once whenever it is asked, until it is closed. */
function endless(frame: Buffer): Wire & { chunksRead: number } {
  const chunk = Buffer.concat(Array.from({ length: chunkBytes / frame.length }, () => frame));
  const wire = {
    isClosed: false,
    chunksRead: 0,
    async *chunks() {
      for (; !wire.isClosed; wire.chunksRead++) yield Buffer.from(chunk);
    },
    send: async () => {},
    close: () => void (wire.isClosed = true),
  };
  return wire;
}

/** A masked frame of a client, whose mask is 0. */
function masked(opcode: number, payload = ""): Buffer {
  const head = Buffer.from([0x80 | opcode, 0x80 | payload.length, 0, 0, 0, 0]);
  return Buffer.concat([head, Buffer.from(payload)]);
}

async function drain(wire: Wire): Promise<void> {
  for await (const _ of new WebSocketConnection(wire, "server").pieces());
}

async function channels(wire: Wire, stdin = false): Promise<void> {
  const wanted = { stdin, stdout: true, stderr: false, tty: true };
  const { ended } = await websocketChannels(wire, wanted, "v5.channel.k8s.io");
  await ended;
}

const spdy = (wire: Wire) => new SpdySession(wire, () => {}).run();

test.each<[string, Buffer, (wire: Wire) => Promise<void>]>([
  ["SPDY data of an unknown stream", dataHead(99, 0, false), spdy],
  ["SPDY pings that are answers", controlFrame(PING, [2]), spdy],
  ["SPDY pings", controlFrame(PING, [1]), spdy],
  ["WebSocket pongs", masked(10), drain],
  ["WebSocket pings", masked(9), drain],
  ["empty WebSocket messages", masked(2), drain],
  ["resizes", masked(2, '\x04{"Width":80,"Height":24}'), channels],
  ["bytes of a channel that nobody reads", masked(2, "\0x"), channels],
])("%s, from eight peers", async (_, frame, serve) => {
  const wires = Array.from({ length: 8 }, () => endless(frame));
  const served = wires.map((wire) => serve(wire));
  // The state that counts: other calls run in between, and each flood goes on.
  for (let turns = 0; turns < 50; turns++) await new Promise((resolve) => setImmediate(resolve));
  await Bun.sleep(100);
  const read = wires.map(({ chunksRead }) => chunksRead);
  for (const wire of wires) wire.close();
  await Promise.all(served);
  // 64 KiB have at most 11,000 frames: a paced peer has sent few more than its burst of 2,000.
  expect(Math.max(...read)).toBeLessThan(20);
});

test("empty messages of an input are paced, too", async () => {
  const frame = masked(2, "\0");
  const wire = endless(frame);
  const begin = performance.now();
  const served = channels(wire, true);
  await Bun.sleep(1_000);
  const ms = performance.now() - begin;
  const read = wire.chunksRead;
  wire.close();
  await served;
  // A burst of 2,000, then 20 a millisecond; the last chunk is read as a whole.
  const chunks = (2_000 + ms * 20) / Math.floor(chunkBytes / frame.length);
  expect(read).toBeLessThanOrEqual(Math.ceil(chunks) + 1);
});
