// PortForward over WebSocket, as k8s.io/cri-streaming/pkg/streaming/portforward has it: the ports are those
// of the CRI call, each connected to once. Port n has channels 2n for data and 2n + 1 for what went wrong;
// the first message of each is the port as a little-endian uint16. The connection ends with the last of
// its ports.
import type { NetnsSockets } from "../node/netns_sockets.ts";
import type { Wire } from "../sys/byte_stream.ts";
import { ChunkQueue } from "../sys/chunk_queue.ts";
import type { Poller } from "../sys/poller.ts";
import { closeNormal, WebSocketConnection } from "../sys/websocket.ts";
import { ChannelMessages } from "./channel_messages.ts";
import { forward, type ForwardClient } from "./port_forward.ts";

/** The best first; "": the client names none. */
export const portForwardChannelProtocols = ["v4.channel.k8s.io", "v4.base64.channel.k8s.io", ""];

/** Serves one client until it goes or no port has more to send. gone: its connection has ended. */
export async function forwardWebSocket(
  wire: Wire,
  options: {
    ports: number[];
    protocol: string;
    sockets: NetnsSockets;
    poller: Poller;
    gone: AbortSignal;
  },
): Promise<void> {
  const { ports, protocol, sockets, poller } = options;
  const messages = new ChannelMessages(new WebSocketConnection(wire, "server"), protocol);
  const left = new AbortController();
  const gone = AbortSignal.any([options.gone, left.signal]);
  const inboxes = ports.map(() => new ChunkQueue());
  for (const [index, port] of ports.entries()) {
    await messages.send(2 * index, littleEndian(port));
    await messages.send(2 * index + 1, littleEndian(port));
  }
  const received = receive(messages, inboxes).finally(() => left.abort());
  received.catch(() => {}); // awaited at the end
  const forwarded = ports.map((port, index) => {
    const client = clientOf(messages, { index, inbox: inboxes[index]!, gone });
    return forward(client, { sockets, poller, port }).catch(() => {}); // the client has gone
  });
  await Promise.all(forwarded);
  await messages.close(closeNormal);
  if (left.signal.aborted) await received; // its error is the reason of the end
}

function littleEndian(port: number): Buffer {
  const bytes = Buffer.alloc(2);
  bytes.writeUInt16LE(port);
  return bytes;
}

async function receive(messages: ChannelMessages, inboxes: ChunkQueue[]): Promise<void> {
  try {
    for await (const { channel, bytes } of messages.pieces()) {
      // What comes on a channel for errors, or on one that is none, means nothing.
      if (channel % 2 === 0) await inboxes[channel / 2]?.put(bytes);
    }
  } finally {
    for (const inbox of inboxes) inbox.end();
  }
}

function clientOf(
  messages: ChannelMessages,
  { index, inbox, gone }: { index: number; inbox: ChunkQueue; gone: AbortSignal },
): ForwardClient {
  return {
    chunks: () => inbox.chunks(),
    gone,
    write: (bytes) => messages.send(2 * index, bytes),
    end: async () => {}, // no message tells it
    close: async () => inbox.discard(),
    async fail(message) {
      inbox.discard();
      await messages.send(2 * index + 1, Buffer.from(message));
    },
  };
}
