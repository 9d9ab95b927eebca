// PortForward (portforward.k8s.io over SPDY): for each connection the client opens two streams with the
// port in their headers, one for the data and one for what went wrong. The other end is localhost in the
// pod's network namespace, IPv4 first.
import { messageOf } from "../base/errors.ts";
import type { NetnsSockets } from "../node/netns_sockets.ts";
import { ByteStream, type Wire } from "../sys/byte_stream.ts";
import type { Poller } from "../sys/poller.ts";
import { SpdySession, type SpdyStream } from "../sys/spdy.ts";
import { connectLoopback } from "../sys/tcp.ts";
import { inTime } from "../base/abort.ts";
import { copyOutput } from "./copy.ts";

export const portForwardProtocol = "portforward.k8s.io";

/** For the second stream of a pair, as in kubelet. */
const pairMs = 30_000;
const connectMs = 10_000;
/** After the pod's side has ended, for what the client still sends. */
const lingerMs = 1_000;

type Pair = { port: number; data?: SpdyStream; error?: SpdyStream; late: NodeJS.Timeout };

/** Serves one client until it goes. */
export async function servePortForward(
  wire: Wire,
  options: { sockets: NetnsSockets; poller: Poller },
): Promise<void> {
  const pairs = new Pairs((data, error, port) => forward(data, error, { ...options, port }));
  const session = new SpdySession(wire, (stream) => pairs.add(stream));
  try {
    await session.run();
  } finally {
    pairs.end();
    await pairs.forwarded();
  }
}

class Pairs {
  readonly #waiting = new Map<string, Pair>();
  readonly #running = new Set<Promise<void>>();
  readonly #onPair: (data: SpdyStream, error: SpdyStream, port: number) => Promise<void>;

  constructor(onPair: (data: SpdyStream, error: SpdyStream, port: number) => Promise<void>) {
    this.#onPair = onPair;
  }

  /** Old clients number no requests: there the error stream comes first, the data stream next. */
  add(stream: SpdyStream): void {
    const { streamtype: type, requestid, port: text } = stream.headers;
    const port = Number(text);
    if ((type !== "data" && type !== "error") || !Number.isInteger(port) || !isPort(port)) {
      stream.reset().catch(() => {});
      return;
    }
    const id = requestid ?? String(type === "error" ? stream.id : stream.id - 2);
    const pair = this.#waiting.get(id) ?? this.#expect(id, port);
    if (pair[type] !== undefined || pair.port !== port) {
      stream.reset().catch(() => {});
      return;
    }
    pair[type] = stream;
    if (pair.data === undefined || pair.error === undefined) return;
    this.#forget(id, pair);
    pair.error.inbox.discard();
    const running = this.#onPair(pair.data, pair.error, port)
      .catch(() => {}) // the client has gone
      .finally(() => this.#running.delete(running));
    this.#running.add(running);
  }

  #expect(id: string, port: number): Pair {
    const late = setTimeout(() => {
      for (const stream of [pair.data, pair.error]) stream?.reset().catch(() => {});
      this.#forget(id, pair);
    }, pairMs);
    const pair: Pair = { port, late };
    this.#waiting.set(id, pair);
    return pair;
  }

  #forget(id: string, { late }: Pair): void {
    clearTimeout(late);
    this.#waiting.delete(id);
  }

  end(): void {
    for (const [id, pair] of this.#waiting) this.#forget(id, pair);
  }

  async forwarded(): Promise<void> {
    await Promise.all(this.#running);
  }
}

function isPort(port: number): boolean {
  return port >= 1 && port <= 65_535;
}

type Target = { sockets: NetnsSockets; poller: Poller; port: number };

async function forward(data: SpdyStream, error: SpdyStream, target: Target): Promise<void> {
  let socket: ByteStream;
  try {
    socket = await inTime(dial(target), `connecting to port ${target.port}`, connectMs);
  } catch (failure) {
    await error.write(Buffer.from(`cannot forward to port ${target.port}: ${messageOf(failure)}`));
    await Promise.all([error.end(), data.reset()]);
    return;
  }
  using _ = socket;
  const sent = upload(data, socket);
  try {
    const never = new Promise<never>(() => {});
    await copyOutput(socket, (bytes) => data.write(bytes), never);
    await data.end();
    await Promise.race([sent, new Promise((resolve) => setTimeout(resolve, lingerMs))]);
  } finally {
    data.inbox.discard();
    await error.end();
  }
}

async function upload(data: SpdyStream, socket: ByteStream): Promise<void> {
  try {
    for await (const chunk of data.chunks()) await socket.send(chunk);
    await socket.endWrite();
    if (data.broken) socket.close(); // there is nobody to answer to
  } catch {
    // The pod's side takes no more; what it sends is read to its end.
  }
}

async function dial({ sockets, poller, port }: Target): Promise<ByteStream> {
  const refused: unknown[] = [];
  for (const family of ["IPv4", "IPv6"] as const) {
    const unconnected = await sockets.take(family);
    if (unconnected === undefined) continue;
    const socket = new ByteStream(unconnected, poller);
    try {
      await connectLoopback(unconnected, { family, port, poller });
      return socket;
    } catch (error) {
      socket.close();
      refused.push(error);
    }
  }
  throw new Error(refused.map(messageOf).join("; ") || "the pod's network is gone");
}
