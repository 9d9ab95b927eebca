// The one HTTP server that Exec, Attach and PortForward send their clients to (the kubelet, which
// proxies, or crictl). It listens on loopback; who knows a token's URL may use it once.
//
// Decision: its sockets are descriptors of ours and not node's. So epoll tells at once when a client has
// gone while its command takes no input and nothing is read; and bytes go from a FIFO to the client
// through one buffer, no faster than it takes them.
import { inTime } from "../base/abort.ts";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { ByteStream, type Wire } from "../sys/byte_stream.ts";
import { headText, readHead, refuse, words, type Head } from "../sys/http_upgrade.ts";
import type { Descriptor } from "../sys/descriptor.ts";
import type { Poller } from "../sys/poller.ts";
import { accept, listenLoopback } from "../sys/tcp.ts";
import { acceptKey } from "../sys/websocket.ts";
import { Tokens } from "./tokens.ts";

/** What a URL stands for: the protocols it is spoken in, the best first, and what is then done. */
export type Session = {
  kind: "exec" | "attach" | "portforward";
  spdy: string[];
  websocket: string[];
  /** Serves one client to its end. gone: it is no longer there. */
  serve(wire: Wire, upgrade: Upgrade, gone: AbortSignal): Promise<void>;
};
export type Upgrade = { over: "spdy" | "websocket"; protocol: string };

const headMs = 10_000;
/** How long a client may take to end its side after ours. */
const farewellMs = 2_000;
/** Clients at a time; the next is told to come again. */
const clientsMax = 1000;

export class StreamServer implements AsyncDisposable {
  readonly #listener: Descriptor;
  readonly #poller: Poller;
  readonly #log: Log;
  readonly #idleMs: number;
  readonly #tokens = new Tokens<Session>();
  readonly #clients = new Map<ByteStream, Promise<void>>();
  readonly port: number;
  #accepting: Promise<void> | undefined;
  #served = 0;
  #closed = false;

  /** port 0: one that is free. @throws CriError FAILED_PRECONDITION when it is taken. */
  constructor(options: { port: number; poller: Poller; log: Log; idleMs: number }) {
    this.#poller = options.poller;
    this.#log = options.log;
    this.#idleMs = options.idleMs;
    try {
      const { listener, port } = listenLoopback(options.port);
      [this.#listener, this.port] = [listener, port];
    } catch (cause) {
      const message = `cannot serve streams: ${messageOf(cause)}: another port by websocket-server-listening-port, or 0 for a free one`;
      throw new CriError("FAILED_PRECONDITION", message, { cause });
    }
  }

  /** How many clients have come and gone. */
  get served(): number {
    return this.#served;
  }

  /** The path of a URL that is good for one use. @throws CriError RESOURCE_EXHAUSTED. */
  offer(session: Session): string {
    const path = `/${session.kind}/${this.#tokens.put(session)}`;
    this.#accepting ??= this.#acceptAll(); // before, there is no URL, and no need of a thread
    return path;
  }

  async #acceptAll(): Promise<void> {
    while (!this.#closed) {
      try {
        const connection = accept(this.#listener);
        if (connection === undefined) await this.#poller.readable(this.#listener);
        else this.#take(new ByteStream(connection, this.#poller));
      } catch (error) {
        // No descriptors left, say: those that are there go on.
        this.#log.error("a stream's client was not taken", { error: messageOf(error) });
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
    }
  }

  #take(stream: ByteStream): void {
    const client = this.#serve(stream)
      .catch((error: unknown) => {
        this.#log.debug("a stream ended", { error: messageOf(error), code: codeOf(error) });
      })
      .finally(() => {
        stream.close();
        this.#clients.delete(stream);
        this.#served++;
      });
    this.#clients.set(stream, client);
  }

  async #serve(stream: ByteStream): Promise<void> {
    if (this.#clients.size >= clientsMax) {
      const message = `${clientsMax} streams are open: close some, or try again later`;
      return refuse(stream, "503 Service Unavailable", { message });
    }
    let request: Awaited<ReturnType<typeof readHead>>;
    try {
      request = await inTime(readHead(stream), "waiting for an HTTP request", headMs);
    } catch (error) {
      return refuse(stream, "400 Bad Request", { message: messageOf(error) });
    }
    const { head, rest } = request;
    const session = this.#sessionOf(head.line);
    if (typeof session === "string") return refuse(stream, session, { message: session });
    const upgrade = negotiate(head, session);
    if ("status" in upgrade) return refuse(stream, upgrade.status, upgrade);
    await stream.send(headText("HTTP/1.1 101 Switching Protocols", upgrade.headers));
    const gone = new AbortController();
    stream.onHangup(() => gone.abort());
    using _ = this.#closeWhenIdle(stream, gone);
    try {
      await session.serve(rest, upgrade, gone.signal);
      await stream.endWrite();
      if (!gone.signal.aborted) await farewell(gone.signal);
    } finally {
      gone.abort();
    }
  }

  /** Or the status of the refusal. */
  #sessionOf(line: string): Session | string {
    const match = /^(\S+) \/(\w+)\/([\w-]+)(?:\?\S*)? HTTP\/1\.[01]$/.exec(line);
    if (match === null) return "404 Not Found";
    const [, method, kind, token] = match;
    if (method !== "GET" && method !== "POST") return "405 Method Not Allowed";
    const session = this.#tokens.take(token!);
    return session?.kind === kind ? session! : "404 Not Found";
  }

  #closeWhenIdle(stream: ByteStream, gone: AbortController): Disposable {
    let timer: ReturnType<typeof setTimeout>;
    const look = () => {
      const left = this.#idleMs - stream.idleMs;
      if (left > 0) {
        timer = setTimeout(look, left);
        timer.unref();
        return;
      }
      this.#log.info("a stream was idle for too long", { idleMs: Math.round(stream.idleMs) });
      stream.close();
      gone.abort();
    };
    look();
    return { [Symbol.dispose]: () => clearTimeout(timer) };
  }

  /** Clients are cut off, which ends their commands. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    this.#poller.forget(this.#listener);
    this.#listener.close();
    for (const stream of this.#clients.keys()) stream.close();
    await Promise.allSettled([this.#accepting, ...this.#clients.values()]);
  }
}

function farewell(gone: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, farewellMs);
    gone.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}

type Accepted = Upgrade & { headers: [string, string][] };
type Refused = { status: string; message: string; headers?: [string, string][] };

/** Which protocol both sides speak: the client's first choice among ours. */
export function negotiate(head: Head, session: Session): Accepted | Refused {
  const upgrade = words(head, "upgrade").map((word) => word.toLowerCase());
  if (upgrade.includes("websocket")) return websocketUpgrade(head, session);
  if (!upgrade.includes("spdy/3.1")) {
    const message = "this URL is for clients that ask for Upgrade: SPDY/3.1 or websocket";
    return { status: "400 Bad Request", message };
  }
  const offered = words(head, "x-stream-protocol-version");
  const protocol = offered.find((one) => session.spdy.includes(one));
  if (protocol === undefined && offered.length > 0) {
    return {
      status: "403 Forbidden",
      message: `unable to upgrade: none of ${offered.join(", ")}; supported: ${session.spdy.join(", ")}`,
      headers: session.spdy.map((one) => ["X-Accepted-Stream-Protocol-Versions", one]),
    };
  }
  const chosen = protocol ?? session.spdy.at(-1)!; // old clients name none
  return {
    over: "spdy",
    protocol: chosen,
    headers: [
      ["Connection", "Upgrade"],
      ["Upgrade", "SPDY/3.1"],
      ["X-Stream-Protocol-Version", chosen],
    ],
  };
}

function websocketUpgrade(head: Head, session: Session): Accepted | Refused {
  const key = head.headers.get("sec-websocket-key")?.[0];
  const version = head.headers.get("sec-websocket-version")?.[0];
  if (key === undefined || version !== "13") {
    const message = "a WebSocket request needs Sec-WebSocket-Key and Sec-WebSocket-Version: 13";
    return { status: "400 Bad Request", message, headers: [["Sec-WebSocket-Version", "13"]] };
  }
  const offered = words(head, "sec-websocket-protocol");
  const protocol = offered.find((one) => session.websocket.includes(one));
  if (protocol === undefined) {
    const message = `Sec-WebSocket-Protocol must offer one of ${session.websocket.join(", ")}`;
    return { status: "400 Bad Request", message };
  }
  return {
    over: "websocket",
    protocol,
    headers: [
      ["Connection", "Upgrade"],
      ["Upgrade", "websocket"],
      ["Sec-WebSocket-Accept", acceptKey(key)],
      ["Sec-WebSocket-Protocol", protocol],
    ],
  };
}
