// PortForward over SPDY (portforward.k8s.io): for each connection the client opens two streams with the
// port in their headers, one for the data and one for what went wrong.
import type { NetnsSockets } from "../node/netns_sockets.ts";
import type { Wire } from "../sys/byte_stream.ts";
import type { Poller } from "../sys/poller.ts";
import { SpdySession, type SpdyStream } from "../sys/spdy.ts";
import { forward, type ForwardClient } from "./port_forward.ts";

export const portForwardProtocol = "portforward.k8s.io";

/** For the second stream of a pair, as in kubelet. */
const pairMs = 30_000;

type Pair = { port: number; data?: SpdyStream; error?: SpdyStream; late: NodeJS.Timeout };
type OnPair = (client: ForwardClient, port: number) => Promise<void>;

/** Serves one client until it goes. gone: aborts when its connection has ended. */
export async function forwardSpdy(
  wire: Wire,
  { gone, ...options }: { sockets: NetnsSockets; poller: Poller; gone: AbortSignal },
): Promise<void> {
  const pairs = new Pairs(gone, (client, port) => forward(client, { ...options, port }));
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
  readonly #gone: AbortSignal;
  readonly #onPair: OnPair;

  constructor(gone: AbortSignal, onPair: OnPair) {
    this.#gone = gone;
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
    const client = clientOf(pair.data, pair.error, this.#gone);
    const running = this.#onPair(client, port)
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

function clientOf(data: SpdyStream, error: SpdyStream, gone: AbortSignal): ForwardClient {
  error.inbox.discard();
  return {
    chunks: () => data.chunks(),
    gone: AbortSignal.any([gone, data.gone]),
    write: (bytes) => data.write(bytes),
    end: () => data.end(),
    async close() {
      data.inbox.discard();
      await error.end();
    },
    async fail(message) {
      await error.write(Buffer.from(message));
      await Promise.all([error.end(), data.reset()]);
    },
  };
}
