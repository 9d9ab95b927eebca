// Serves PortForward over WebSocket like k8s.io/cri-streaming/pkg/streaming/portforward: the CRI call names
// the ports, each is connected once. The n-th port has channels 2n for data and 2n + 1 for errors; the first
// message of each is the port as a little-endian uint16. The WebSocket closes when the last port's connection
// ends.
import type { Wire } from "../sys/byte_stream.ts";
import { ChunkQueue } from "../sys/chunk_queue.ts";
import { FramePace } from "../sys/frame_pace.ts";
import { closeNormal, WebSocketConnection } from "../sys/websocket.ts";
import { ChannelMessages } from "./channel_messages.ts";
import { forward, type ForwardClient, type ForwardTarget } from "./port_forward.ts";

/** In order of preference; "": the client names none. */
export const portForwardChannelProtocols = ["v4.channel.k8s.io", "v4.base64.channel.k8s.io", ""];

type Options = Omit<ForwardTarget, "port"> & {
  ports: number[];
  protocol: string;
  hangup: AbortSignal;
};

/** Serves one client until it disconnects, which aborts `hangup`, or all ports have ended. */
export async function forwardWebSocket(wire: Wire, options: Options): Promise<void> {
  const { ports, protocol, sockets, addresses, poller } = options;
  const messages = new ChannelMessages(new WebSocketConnection(wire, "server"), protocol);
  const disconnected = new AbortController();
  const hangup = AbortSignal.any([options.hangup, disconnected.signal]);
  const inboxes = ports.map(() => new ChunkQueue());
  for (const [index, port] of ports.entries()) {
    await messages.send(2 * index, littleEndian(port));
    await messages.send(2 * index + 1, littleEndian(port));
  }
  const received = receive(messages, inboxes).finally(() => disconnected.abort());
  received.catch(() => {}); // awaited at the end
  const forwarded = ports.map((port, index) => {
    const client = clientOf(messages, { index, inbox: inboxes[index]!, hangup });
    return forward(client, { sockets, addresses, poller, port }).catch(() => {}); // the client has disconnected
  });
  await Promise.all(forwarded);
  await messages.close(closeNormal);
  if (disconnected.signal.aborted) await received; // throws what ended the connection
}

function littleEndian(port: number): Buffer {
  const bytes = Buffer.alloc(2);
  bytes.writeUInt16LE(port);
  return bytes;
}

async function receive(messages: ChannelMessages, inboxes: ChunkQueue[]): Promise<void> {
  const pace = new FramePace();
  try {
    for await (const { channel, bytes } of messages.pieces()) {
      // Error channels are one-way, others unknown: their input is ignored.
      const inbox = channel % 2 === 0 ? inboxes[channel / 2] : undefined;
      if (inbox?.takes !== true && pace.isSpent()) await pace.rest();
      await inbox?.put(bytes);
    }
  } finally {
    for (const inbox of inboxes) inbox.end();
  }
}

function clientOf(
  messages: ChannelMessages,
  { index, inbox, hangup }: { index: number; inbox: ChunkQueue; hangup: AbortSignal },
): ForwardClient {
  return {
    chunks: () => inbox.chunks(),
    hangup,
    write: (bytes) => messages.send(2 * index, bytes),
    end: async () => {}, // the protocol has no half-close
    close: async () => inbox.discard(),
    async fail(message) {
      inbox.discard();
      await messages.send(2 * index + 1, Buffer.from(message));
    },
  };
}
