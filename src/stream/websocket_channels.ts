// Carries a command's streams over WebSocket, on the server's side (sys/remote_command.ts): the protocols of
// k8s.io/cri-streaming/pkg/streaming/remotecommand, and v5 of API servers.
import type { Wire } from "../sys/byte_stream.ts";
import { ChunkQueue } from "../sys/chunk_queue.ts";
import { FramePace } from "../sys/frame_pace.ts";
import { channel } from "../sys/remote_command.ts";
import { closeNormal, WebSocketConnection } from "../sys/websocket.ts";
import { ChannelMessages } from "./channel_messages.ts";
import { NewestSize, statusJson, statusText } from "./channels.ts";
import type { Channels, Outcome, WantedStreams } from "./channels.ts";

/** In order of preference; "": the client names none. */
export const websocketProtocols = [
  "v5.channel.k8s.io",
  "v4.channel.k8s.io",
  "v4.base64.channel.k8s.io",
  "channel.k8s.io",
  "base64.channel.k8s.io",
  "",
];

/** ended: settles when the client disconnects. */
export async function websocketChannels(
  wire: Wire,
  wanted: WantedStreams,
  protocol: string,
): Promise<{ channels: Channels; ended: Promise<void> }> {
  const messages = new ChannelMessages(new WebSocketConnection(wire, "server"), protocol);
  const [stdin, resizes] = [new ChunkQueue(), new NewestSize()];
  if (!wanted.stdin) stdin.discard();
  if (!wanted.tty) resizes.end();
  const ended = receive(messages, { stdin, resizes, halfClose: protocol.startsWith("v5") });
  ended.catch(() => {});
  const [first = "error"] = (["stdout", "stderr"] as const).filter((stream) => wanted[stream]);
  const channels: Channels = {
    stdin: stdin.chunks(),
    resizes: resizes.sizes(),
    write: async (stream, bytes) => {
      if (wanted[stream] && bytes.length > 0) await messages.send(channel[stream], bytes);
    },
    finish: async (outcome) => {
      const status = statusOf(outcome, protocol);
      if (status.length > 0) await messages.send(channel.error, status);
      await messages.close(closeNormal);
    },
    [Symbol.dispose]: () => {
      stdin.discard();
      resizes.end();
    },
  };
  using undo = new DisposableStack();
  undo.use(channels);
  // Clients wait for a first, empty message before they count as connected, as from kubelet.
  await messages.send(channel[first], Buffer.alloc(0));
  undo.move();
  return { channels, ended };
}

/** Before v4 a failure is plain text, and success sends no message. */
function statusOf(outcome: Outcome, protocol: string): Buffer {
  const isJson = protocol.startsWith("v4.") || protocol.startsWith("v5.");
  return isJson ? statusJson(outcome) : Buffer.from(statusText(outcome));
}

async function receive(
  messages: ChannelMessages,
  to: { stdin: ChunkQueue; resizes: NewestSize; halfClose: boolean },
): Promise<void> {
  const pace = new FramePace();
  try {
    for await (const { channel: number, bytes } of messages.pieces()) {
      const isTaken = number === channel.stdin && to.stdin.takes && bytes.length > 0;
      if (!isTaken && pace.isSpent()) await pace.rest();
      if (number === channel.stdin) await to.stdin.put(bytes);
      else if (number === channel.resize) to.resizes.push(bytes);
      else if (number === channel.close && to.halfClose && bytes[0] === channel.stdin)
        to.stdin.end();
    }
  } finally {
    to.stdin.end();
    to.resizes.end();
  }
}
