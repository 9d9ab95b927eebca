// Forwards one connection between a client's stream, over any protocol, and a port of a pod: on localhost in its
// network namespace, IPv4 first, or on the address of a pod whose own kernel has the network.
import { throwIfAborted } from "../base/abort.ts";
import { messageOf } from "../base/errors.ts";
import type { NetnsSockets } from "../node/netns_sockets.ts";
import { ByteStream } from "../sys/byte_stream.ts";
import type { Poller } from "../sys/poller.ts";
import { familyOf } from "../sys/socket_address.ts";
import { connectTcp } from "../sys/tcp.ts";
import { copyOutput } from "./copy_output.ts";

const connectMs = 10_000;
/** How long the other side may finish after one side has ended. */
const lingerMs = 1_000;
/** After a client has left, the rest of what it sent is dropped once the port has taken nothing for this long. */
const stuckMs = 10_000;

/** A client's end of one connection. */
export type ForwardClient = {
  /** Yields what the client sends, until it half-closes or disconnects. */
  chunks(): AsyncIterable<Buffer>;
  /** Aborts when the client no longer receives. */
  hangup: AbortSignal;
  /** Waits while the client is slow. @throws if it has disconnected. */
  write(bytes: Uint8Array): Promise<void>;
  /** Half-closes: the port sends no more. */
  end(): Promise<void>;
  /** Discards anything more that the client sends. */
  close(): Promise<void>;
  /** Reports why there is no connection. */
  fail(message: string): Promise<void>;
};

/** addresses: tried in this order, with sockets of the namespace from which they are reached. */
export type ForwardTarget = {
  sockets: NetnsSockets;
  addresses: string[];
  poller: Poller;
  port: number;
};

export const localhost = ["127.0.0.1", "::1"];

/** Connects to the port and copies both ways until both ends. @throws if the client has disconnected. */
export async function forward(client: ForwardClient, target: ForwardTarget): Promise<void> {
  using socket = await connectOrFail(client, target);
  if (socket === undefined) return;
  const progress = { lastMs: performance.now(), isDone: false };
  using _ = closeAfter(client, socket, progress);
  const sent = upload(client, socket, progress);
  try {
    await copyOutput(socket, (bytes) => download(client, bytes));
    if (!client.hangup.aborted) await client.end();
    await Promise.race([sent, new Promise((resolve) => setTimeout(resolve, lingerMs))]);
  } finally {
    await client.close();
  }
}

/** Connects to the port; undefined: it failed, and the client has been sent the reason. */
async function connectOrFail(
  client: ForwardClient,
  target: ForwardTarget,
): Promise<ByteStream | undefined> {
  const signal = AbortSignal.any([client.hangup, AbortSignal.timeout(connectMs)]);
  try {
    return await dial(target, signal);
  } catch (failure) {
    await client.fail(`cannot forward to port ${target.port}: ${messageOf(failure)}`);
    return undefined;
  }
}

/**
 * Sends the port's bytes to the client, and drops them once it has disconnected, without an error: what the client sent
 * before must still reach the port.
 */
async function download(client: ForwardClient, bytes: Uint8Array): Promise<void> {
  if (client.hangup.aborted) return;
  try {
    await client.write(bytes);
  } catch (error) {
    if (!client.hangup.aborted) throw error;
  }
}

type Progress = {
  /** Time of the last bytes that the port took. */
  lastMs: number;
  /** The port has taken everything, or takes no more. */
  isDone: boolean;
};

async function upload(
  client: ForwardClient,
  socket: ByteStream,
  progress: Progress,
): Promise<void> {
  try {
    for await (const chunk of client.chunks()) {
      await socket.send(chunk);
      progress.lastMs = performance.now();
    }
    await socket.endWrite();
  } catch {
    // The port closed its receiving side; its output is still copied.
  }
  progress.isDone = true;
}

/** After a disconnect, closes the socket once the port has taken what the client sent, or is stuck. */
function closeAfter({ hangup }: ForwardClient, socket: ByteStream, progress: Progress): Disposable {
  let timer: ReturnType<typeof setInterval> | undefined;
  const begin = () => {
    progress.lastMs = performance.now();
    timer = setInterval(() => {
      const limitMs = progress.isDone ? lingerMs : stuckMs;
      if (performance.now() - progress.lastMs >= limitMs) socket.close();
    }, lingerMs / 4);
  };
  if (hangup.aborted) begin();
  else hangup.addEventListener("abort", begin, { once: true });
  return {
    [Symbol.dispose]: () => {
      hangup.removeEventListener("abort", begin);
      clearInterval(timer);
    },
  };
}

/** Returns a socket that the caller closes. @throws if no address connects or the signal aborts. */
async function dial(
  { sockets, addresses, poller, port }: ForwardTarget,
  signal: AbortSignal,
): Promise<ByteStream> {
  const refused: unknown[] = [];
  for (const address of addresses) {
    const unconnected = await sockets.take(familyOf(address));
    if (unconnected === undefined) continue;
    const socket = new ByteStream(unconnected, poller);
    try {
      await connectTcp(unconnected, { address, port, poller, signal });
      return socket;
    } catch (error) {
      socket.close();
      throwIfAborted(`connecting to port ${port}`, signal);
      refused.push(error);
    }
  }
  throw new Error(refused.map(messageOf).join("; ") || "the pod has no address");
}
