// One forwarded connection: between a client's stream, whatever protocol carries it, and a port on localhost
// in the pod's network namespace, IPv4 first.
import { throwIfAborted } from "../base/abort.ts";
import { messageOf } from "../base/errors.ts";
import type { NetnsSockets } from "../node/netns_sockets.ts";
import { ByteStream } from "../sys/byte_stream.ts";
import type { Poller } from "../sys/poller.ts";
import { connectLoopback } from "../sys/tcp.ts";
import { copyOutput } from "./copy.ts";

const connectMs = 10_000;
/** After one side has ended, for what the other still sends or takes. */
const lingerMs = 1_000;

/** A client's end of one connection. */
export type ForwardClient = {
  /** What it sends, to its half-close or its end. */
  chunks(): AsyncIterable<Buffer>;
  /** Aborts when nobody hears an answer any more. */
  gone: AbortSignal;
  /** Waits while the client is slow. @throws when it has gone. */
  write(bytes: Uint8Array): Promise<void>;
  /** The port sends no more. */
  end(): Promise<void>;
  /** Nothing more is taken from it. */
  close(): Promise<void>;
  /** Instead of a connection: tells why there is none. */
  fail(message: string): Promise<void>;
};

export type ForwardTarget = { sockets: NetnsSockets; poller: Poller; port: number };

const never = new Promise<never>(() => {});

/** Connects to the port and copies both ways, to the end of both. @throws when the client has gone. */
export async function forward(client: ForwardClient, target: ForwardTarget): Promise<void> {
  using socket = await connected(client, target);
  if (socket === undefined) return;
  const progress = { lastMs: performance.now() };
  using _ = closeAfter(client, socket, progress);
  const sent = upload(client, socket, progress);
  try {
    await copyOutput(socket, (bytes) => answer(client, bytes), never);
    if (!client.gone.aborted) await client.end();
    await Promise.race([sent, new Promise((resolve) => setTimeout(resolve, lingerMs))]);
  } finally {
    await client.close();
  }
}

/** undefined: the client has heard why there is no connection. */
async function connected(
  client: ForwardClient,
  target: ForwardTarget,
): Promise<ByteStream | undefined> {
  const signal = AbortSignal.any([client.gone, AbortSignal.timeout(connectMs)]);
  try {
    return await dial(target, signal);
  } catch (failure) {
    await client.fail(`cannot forward to port ${target.port}: ${messageOf(failure)}`);
    return undefined;
  }
}

/** A client that has gone is not answered; what it sent before still gets to the port. */
async function answer(client: ForwardClient, bytes: Uint8Array): Promise<void> {
  if (client.gone.aborted) return;
  try {
    await client.write(bytes);
  } catch (error) {
    if (!client.gone.aborted) throw error;
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
    // The pod's side takes no more; what it sends is read to its end.
  }
}

/** When the client has gone, the port has a moment for each piece of what it sent, and to end. */
function closeAfter(
  { gone }: ForwardClient,
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
  if (gone.aborted) begin();
  else gone.addEventListener("abort", begin, { once: true });
  return {
    [Symbol.dispose]: () => {
      gone.removeEventListener("abort", begin);
      clearInterval(timer);
    },
  };
}

/** The caller's to close. @throws when the signal aborts: no socket is left then. */
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
  throw new Error(refused.map(messageOf).join("; ") || "the pod's network is gone");
}
