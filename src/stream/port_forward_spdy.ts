// Serves PortForward over SPDY (portforward.k8s.io): per connection the client opens a data and an error
// stream with the port in their headers.
import { afterGrace } from "../base/abort.ts";
import type { Wire } from "../sys/byte_stream.ts";
import { SpdySession, type SpdyStream } from "../sys/spdy.ts";
import { forward, type ForwardClient, type ForwardTarget } from "./port_forward.ts";

export const portForwardProtocol = "portforward.k8s.io";

/** Time for the second stream of a pair to arrive, as in kubelet. */
const pairMs = 30_000;
/** The same after the client has disconnected: the rest of what it sent is being read. */
const hangupMs = 1_000;

type Pair = { port: number; data?: SpdyStream; error?: SpdyStream; timer: NodeJS.Timeout };
type OnPair = (client: ForwardClient, port: number) => Promise<void>;

/** Serves one client until it disconnects, which aborts `hangup`. */
export async function forwardSpdy(
  wire: Wire,
  { hangup, ...options }: Omit<ForwardTarget, "port"> & { hangup: AbortSignal },
): Promise<void> {
  const pairs = new Pairs(hangup, (client, port) => forward(client, { ...options, port }));
  const session = new SpdySession(wire, (stream) => pairs.add(stream));
  const late = afterGrace(hangup, hangupMs);
  const end = () => pairs.end();
  late.addEventListener("abort", end, { once: true });
  try {
    await session.run();
  } finally {
    late.removeEventListener("abort", end);
    pairs.end();
    await pairs.forwarded();
  }
}

class Pairs {
  readonly #waiting = new Map<string, Pair>();
  readonly #running = new Set<Promise<void>>();
  readonly #hangup: AbortSignal;
  readonly #onPair: OnPair;
  #hasEnded = false;

  constructor(hangup: AbortSignal, onPair: OnPair) {
    this.#hangup = hangup;
    this.#onPair = onPair;
  }

  /** Old clients send no request id: they open the error stream, then the data stream. */
  add(stream: SpdyStream): void {
    if (this.#hasEnded) return stream.inbox.discard();
    const { streamtype: type, requestid, port: text } = stream.headers;
    const port = Number(text);
    if ((type !== "data" && type !== "error") || !isPort(port)) {
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
    const client = clientOf(pair.data, pair.error, this.#hangup);
    const running = this.#onPair(client, port)
      .catch(() => {}) // the client has disconnected
      .finally(() => this.#running.delete(running));
    this.#running.add(running);
  }

  #expect(id: string, port: number): Pair {
    const timer = setTimeout(() => {
      for (const stream of [pair.data, pair.error]) stream?.reset().catch(() => {});
      this.#forget(id, pair);
    }, pairMs);
    const pair: Pair = { port, timer };
    this.#waiting.set(id, pair);
    return pair;
  }

  #forget(id: string, { timer }: Pair): void {
    clearTimeout(timer);
    this.#waiting.delete(id);
  }

  /** Discards the streams without a partner, of which the first would hold up all others. */
  end(): void {
    this.#hasEnded = true;
    for (const [id, pair] of this.#waiting) {
      this.#forget(id, pair);
      for (const stream of [pair.data, pair.error]) stream?.inbox.discard();
    }
  }

  async forwarded(): Promise<void> {
    await Promise.all(this.#running);
  }
}

function isPort(port: number): boolean {
  return Number.isInteger(port) && port >= 1 && port <= 65_535;
}

function clientOf(data: SpdyStream, error: SpdyStream, hangup: AbortSignal): ForwardClient {
  error.inbox.discard();
  return {
    chunks: () => data.chunks(),
    hangup: AbortSignal.any([hangup, data.gone]),
    write: (bytes) => data.write(bytes),
    end: () => data.end(),
    async close() {
      data.inbox.discard();
      await error.end();
    },
    async fail(message) {
      data.inbox.discard(); // first: the client may not take the message
      await error.write(Buffer.from(message));
      await Promise.all([error.end(), data.reset()]);
    },
  };
}
