// Forwards one connection between a client's stream, over any protocol, and a port on localhost in the pod's
// network namespace, IPv4 first.
import { throwIfAborted } from "../base/abort.ts";
import { messageOf } from "../base/errors.ts";
import type { NetnsSockets } from "../node/netns_sockets.ts";
import { ByteStream } from "../sys/byte_stream.ts";
import type { Poller } from "../sys/poller.ts";
import { connectLoopback } from "../sys/tcp.ts";
import { copyOutput } from "./copy_output.ts";

const connectMs = 10_000;
/** How long the other side may finish after one side has ended. */
const lingerMs = 1_000;

/** A client's end of one connection. */
export type ForwardClient = {
  /** Yields what it sends, until it half-closes or disconnects. */
  chunks(): AsyncIterable<Buffer>;
  /** Aborts when the client no longer receives. */
  hangup: AbortSignal;
  /** Waits while the client is slow. @throws if it has disconnected. */
  write(bytes: Uint8Array): Promise<void>;
  /** Half-closes: the port sends no more. */
  end(): Promise<void>;
  /** Discards anything more that it sends. */
  close(): Promise<void>;
  /** Reports why there is no connection. */
  fail(message: string): Promise<void>;
};

export type ForwardTarget = { sockets: NetnsSockets; poller: Poller; port: number };

/** Connects to the port and copies both ways until both ends. @throws if the client has disconnected. */
export async function forward(client: ForwardClient, target: ForwardTarget): Promise<void> {
  using socket = await connectOrFail(client, target);
  if (socket === undefined) return;
  const progress = { lastMs: performance.now() };
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

/** Returns undefined after a failure, whose reason it has sent to the client. */
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

/** Drops the bytes once the client has disconnected: those that it sent must still reach the port. */
async function download(client: ForwardClient, bytes: Uint8Array): Promise<void> {
  if (client.hangup.aborted) return;
  try {
    await client.write(bytes);
  } catch (error) {
    if (!client.hangup.aborted) throw error;
  }
}

async function upload(
  client: ForwardClient,
  socket: ByteStream,
  progress: { lastMs: number },
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
}

/** After a disconnect, closes the socket once the upload has made no progress for lingerMs. */
function closeAfter(
  { hangup }: ForwardClient,
  socket: ByteStream,
  progress: { lastMs: number },
): Disposable {
  let timer: ReturnType<typeof setInterval> | undefined;
  const begin = () => {
    progress.lastMs = performance.now();
    timer = setInterval(() => {
      if (performance.now() - progress.lastMs >= lingerMs) socket.close();
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

/** Returns a socket that the caller closes. @throws if no family connects or the signal aborts. */
async function dial(
  { sockets, poller, port }: ForwardTarget,
  signal: AbortSignal,
): Promise<ByteStream> {
  const refused: unknown[] = [];
  for (const family of ["IPv4", "IPv6"] as const) {
    const unconnected = await sockets.take(family);
    if (unconnected === undefined) continue;
    const socket = new ByteStream(unconnected, poller);
    try {
      await connectLoopback(unconnected, { family, port, poller, signal });
      return socket;
    } catch (error) {
      socket.close();
      throwIfAborted(`connecting to port ${port}`, signal);
      refused.push(error);
    }
  }
  throw new Error(refused.map(messageOf).join("; ") || "the pod has no network namespace");
}
