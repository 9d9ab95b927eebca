// A command's streams over WebSocket (sys/remote_command.ts): the daemon's end.
import type { Wire } from "../sys/byte_stream.ts";
import { ChunkQueue } from "../sys/chunk_queue.ts";
import { channel } from "../sys/remote_command.ts";
import { closeNormal, WebSocketConnection } from "../sys/websocket.ts";
import { SizeReader, statusJson, type Channels, type Size, type Wanted } from "./channels.ts";

/** The best first. */
export const websocketProtocols = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

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
  const send = (number: number, bytes: Uint8Array) => connection.send(Buffer.from([number]), bytes);
  // Clients wait for a first message before they believe that they are connected, as kubelet sends it.
  const [first = "error"] = (["stdout", "stderr"] as const).filter((stream) => wanted[stream]);
  await send(channel[first], Buffer.alloc(0));
  const channels: Channels = {
    stdin: stdin.chunks(),
    resizes: sizes(resizes),
    write: async (stream, bytes) => {
      if (wanted[stream]) await send(channel[stream], bytes);
    },
    finish: async (outcome) => {
      await send(channel.error, statusJson(outcome));
      await connection.close(closeNormal);
    },
  };
  return { channels, ended };
}

async function receive(
  connection: WebSocketConnection,
  to: { stdin: ChunkQueue; resizes: ChunkQueue; halfClose: boolean },
): Promise<void> {
  let number: number | undefined;
  try {
    for await (const { first, bytes } of connection.pieces()) {
      if (first) number = undefined;
      const data = number === undefined ? bytes.subarray(1) : bytes;
      number ??= bytes[0];
      if (number === channel.stdin) await to.stdin.put(data);
      else if (number === channel.resize) await to.resizes.put(data);
      else if (number === channel.close && to.halfClose && data[0] === channel.stdin)
        to.stdin.end();
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
