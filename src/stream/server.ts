// The one HTTP server that Exec, Attach and PortForward send their clients to (the kubelet, which
// proxies, or crictl). It listens on loopback; who knows a token's URL may use it once.
//
// Decision: its sockets are descriptors of ours and not node's. So epoll tells at once when a client has
// gone while its command takes no input and nothing is read; and bytes go from a FIFO to the client
// through one buffer, no faster than it takes them.
import { setImmediate as nextTurn, setTimeout as sleep } from "node:timers/promises";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import { Lobby } from "../base/lobby.ts";
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

/** For a client to send its request, and how many may be doing that. */
const headMs = 5_000;
const unacceptedMax = 1024;
/** Each has at least this, however many come: a client on this node sends at once. */
const graceMs = 250;
/** Taken before calls are answered again. */
const acceptsMax = 64;
/** How long a client may take to end its side after ours. */
const farewellMs = 2_000;
/** Accepted clients at a time; the next is told to come again. */
const acceptedMax = 1000;

export class StreamServer implements AsyncDisposable {
  readonly #listener: Descriptor;
  readonly #poller: Poller;
  readonly #log: Log;
  readonly #idleMs: number;
  readonly #tokens = new Tokens<Session>();
  readonly #clients = new Map<ByteStream, Promise<void>>();
  readonly #unaccepted = new Lobby<ByteStream>({
    peersMax: unacceptedMax,
    deadlineMs: headMs,
    graceMs,
    expel: (stream) => stream.close(),
  });
  readonly port: number;
  #accepting: Promise<void> | undefined;
  #accepted = 0;
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
    for (let taken = 0; !this.#closed;) {
      try {
        const room = this.#unaccepted.roomInMs();
        if (room > 0) {
          await sleep(room);
          continue;
        }
        const connection = accept(this.#listener);
        if (connection === undefined) await this.#poller.readable(this.#listener);
        else this.#take(new ByteStream(connection, this.#poller));
        if (++taken % acceptsMax === 0) await nextTurn();
      } catch (error) {
        // No descriptors left, say: those that are there go on.
        this.#log.error("a stream's client was not taken", { error: messageOf(error) });
        await sleep(100);
      }
    }
  }

  #take(stream: ByteStream): void {
    this.#unaccepted.enter(stream);
    const client = this.#serve(stream)
      .catch((error: unknown) => {
        this.#log.debug("a stream ended", { error: messageOf(error), code: codeOf(error) });
      })
      .finally(() => {
        stream.close();
        this.#unaccepted.leave(stream);
        this.#clients.delete(stream);
        this.#served++;
      });
    this.#clients.set(stream, client);
  }

  async #serve(stream: ByteStream): Promise<void> {
    await stream.readable(); // one that is silent costs no buffer
    if (stream.closed) return;
    let request: Awaited<ReturnType<typeof readHead>>;
    try {
      request = await readHead(stream);
    } catch (error) {
      if (stream.closed) return;
      return refuse(stream, "400 Bad Request", { message: messageOf(error) });
    }
    const { head, rest } = request;
    const session = this.#sessionOf(head.line);
    if ("status" in session) return refuse(stream, session.status, session);
    const upgrade = negotiate(head, session);
    if ("status" in upgrade) return refuse(stream, upgrade.status, upgrade);
    if (!this.#unaccepted.leave(stream)) return;
    this.#accepted++;
    using _ = {
      [Symbol.dispose]: () => {
        this.#accepted--;
      },
    };
    await this.#converse(stream, { rest, session, upgrade });
  }

  async #converse(
    stream: ByteStream,
    { rest, session, upgrade }: { rest: Wire; session: Session; upgrade: Accepted },
  ): Promise<void> {
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

  /** A token is used up only by a request that can be served now. */
  #sessionOf(line: string): Session | Refused {
    const match = /^(\S+) (?:https?:\/\/[^\s/]+)?(\/\S*) HTTP\/1\.[01]$/.exec(line);
    if (match === null) {
      return { status: "400 Bad Request", message: "the request is no HTTP/1.1 or HTTP/1.0" };
    }
    const [, method, path] = match;
    if (method !== "GET" && method !== "POST") {
      const message = `${method}: streams are asked for by GET or POST`;
      return { status: "405 Method Not Allowed", message, headers: [["Allow", "GET, POST"]] };
    }
    if (this.#accepted >= acceptedMax) {
      const message = `${acceptedMax} streams are open: close some, or try again later`;
      return { status: "503 Service Unavailable", message };
    }
    const [, kind, token] = /^\/(\w+)\/([\w-]+)(?:\?|$)/.exec(path!) ?? [];
    const session = token === undefined ? undefined : this.#tokens.take(token);
    if (session !== undefined && session.kind === kind) return session;
    const message = "this URL stands for no stream: each is good for one use and a minute";
    return { status: "404 Not Found", message };
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
    this.#unaccepted[Symbol.dispose]();
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
  const connection = words(head, "connection").map((word) => word.toLowerCase());
  const upgrade = words(head, "upgrade").map((word) => word.toLowerCase());
  if (connection.includes("upgrade")) {
    if (upgrade.includes("websocket")) return websocketUpgrade(head, session);
    if (upgrade.includes("spdy/3.1")) return spdyUpgrade(head, session);
  }
  const message =
    "this URL is for clients that ask for Connection: Upgrade and Upgrade: SPDY/3.1 or websocket";
  return { status: "400 Bad Request", message };
}

function spdyUpgrade(head: Head, session: Session): Accepted | Refused {
  const offered = words(head, "x-stream-protocol-version");
  const protocol = offered.find((one) => session.spdy.includes(one));
  if (protocol === undefined && offered.length > 0) {
    const headers = session.spdy.map((one): [string, string] => [
      "X-Accepted-Stream-Protocol-Versions",
      one,
    ]);
    return { ...noneOf(offered, session.spdy), headers };
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
  if (!head.line.startsWith("GET ")) {
    const message = "a WebSocket is asked for by GET";
    return { status: "405 Method Not Allowed", message, headers: [["Allow", "GET"]] };
  }
  const key = head.headers.get("sec-websocket-key")?.[0] ?? "";
  const version = head.headers.get("sec-websocket-version")?.[0];
  if (key === "" || version !== "13") {
    const message = "a WebSocket request needs Sec-WebSocket-Key and Sec-WebSocket-Version: 13";
    return { status: "400 Bad Request", message, headers: [["Sec-WebSocket-Version", "13"]] };
  }
  const named = words(head, "sec-websocket-protocol");
  const offered = named.length > 0 ? named : [""];
  const protocol = offered.find((one) => session.websocket.includes(one));
  if (protocol === undefined) return noneOf(offered, session.websocket);
  const headers: [string, string][] = [
    ["Connection", "Upgrade"],
    ["Upgrade", "websocket"],
    ["Sec-WebSocket-Accept", acceptKey(key)],
  ];
  // A client that has named none takes none (RFC 6455, section 4.1).
  if (protocol !== "") headers.push(["Sec-WebSocket-Protocol", protocol]);
  return { over: "websocket", protocol, headers };
}

function noneOf(offered: string[], supported: string[]): Refused {
  const list = (names: string[]) => names.map((name) => name || "none at all").join(", ");
  const message = `unable to upgrade: the client offers ${list(offered)}; supported: ${list(supported)}`;
  return { status: "403 Forbidden", message };
}
