// A command's streams over WebSocket (v4 and v5.channel.k8s.io): each binary message begins with the
// number of its channel. v5 adds 255, after which stands the number of a channel that is half-closed.
import type { Wire } from "../sys/byte_stream.ts";
import { ChunkQueue } from "../sys/chunk_queue.ts";
import { closeNormal, WebSocketConnection } from "../sys/websocket.ts";
import { SizeReader, statusJson, type Channels, type Size, type Wanted } from "./channels.ts";

/** The best first. */
export const websocketProtocols = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

const STDIN = 0;
const STDOUT = 1;
const STDERR = 2;
const ERROR = 3;
const RESIZE = 4;
const CLOSE = 255;

/** Serves the connection; ended: settles when the client has gone. */
export async function websocketChannels(
  wire: Wire,
  wanted: Wanted,
  protocol: string,
): Promise<{ channels: Channels; ended: Promise<void> }> {
  const connection = new WebSocketConnection(wire, "server");
  const [stdin, resizes] = [new ChunkQueue(), new ChunkQueue()];
  if (!wanted.stdin) stdin.discard();
  if (!wanted.tty) resizes.discard();
  const ended = receive(connection, { stdin, resizes, halfClose: protocol.startsWith("v5") });
  ended.catch(() => {});
  const send = (channel: number, bytes: Uint8Array) =>
    connection.send(Buffer.from([channel]), bytes);
  // Clients wait for a first message before they believe that they are connected, as kubelet sends it.
  await send(wanted.stdout ? STDOUT : wanted.stderr ? STDERR : ERROR, Buffer.alloc(0));
  const channels: Channels = {
    stdin: stdin.chunks(),
    resizes: sizes(resizes),
    write: async (stream, bytes) => {
      if (wanted[stream]) await send(stream === "stdout" ? STDOUT : STDERR, bytes);
    },
    finish: async (outcome) => {
      await send(ERROR, statusJson(outcome));
      await connection.close(closeNormal);
    },
  };
  return { channels, ended };
}

async function receive(
  connection: WebSocketConnection,
  to: { stdin: ChunkQueue; resizes: ChunkQueue; halfClose: boolean },
): Promise<void> {
  let channel: number | undefined;
  try {
    for await (const { first, bytes } of connection.pieces()) {
      if (first) channel = undefined;
      const data = channel === undefined ? bytes.subarray(1) : bytes;
      channel ??= bytes[0];
      if (channel === STDIN) await to.stdin.put(data);
      else if (channel === RESIZE) await to.resizes.put(data);
      else if (channel === CLOSE && to.halfClose && data[0] === STDIN) to.stdin.end();
    }
  } finally {
    to.stdin.end();
    to.resizes.end();
  }
}

async function* sizes(queue: ChunkQueue): AsyncGenerator<Size> {
  const reader = new SizeReader();
  for await (const chunk of queue.chunks()) yield* reader.push(chunk);
}
