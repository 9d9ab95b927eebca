// Serves the HTTP upgrade requests of streaming clients (the kubelet's proxy, crictl) for Exec, Attach and
// PortForward. Listens on one address, usually loopback; a URL's token authorizes one use.
//
// Decision: sockets are plain descriptors instead of node's. So epoll reports a disconnect even while nothing
// is read because the command takes no input, and bytes pass from FIFO to client through one buffer, with
// backpressure.
import { setImmediate as nextTurn, setTimeout as sleep } from "node:timers/promises";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import { Lobby } from "../base/lobby.ts";
import type { Log } from "../base/log.ts";
import { Shares } from "../base/shares.ts";
import { ByteStream, type Wire } from "../sys/byte_stream.ts";
import { headText, readHead, refuse, words, type Head, type Refused } from "../sys/http_upgrade.ts";
import { hasInput, unsentBytes, type Descriptor } from "../sys/descriptor.ts";
import { linger, whenStuck } from "../sys/linger.ts";
import type { Poller } from "../sys/poller.ts";
import { accept, listenTcp } from "../sys/tcp.ts";
import { acceptKey } from "../sys/websocket.ts";
import { Tokens } from "./tokens.ts";

/** A session that a URL gives access to. Protocols are in order of preference. */
export type StreamSession = {
  /** The pod's id, for its share of URLs and sessions. */
  pod: string;
  kind: "exec" | "attach" | "portforward";
  spdy: string[];
  websocket: string[];
  /** Serves one client to its end. hangup: aborts when it disconnects. */
  serve(wire: Wire, upgrade: Upgrade, hangup: AbortSignal): Promise<void>;
};
export type Upgrade = { over: "spdy" | "websocket"; protocol: string };

/** Time for a client to send its request, and how many may be sending one. */
const headMs = 5_000;
const unacceptedMax = 1024;
/** Minimum time for each client even if more connect: a client on this node sends immediately. */
const graceMs = 250;
/** Accepted in a row before other calls run. */
const acceptsMax = 64;
/** Clients served at a time. For another one the pod that has most loses its idlest, if it has more than the other's. */
const usualAcceptedMax = 1000;
/** Time in which sessions may pass on what their clients have sent when the server ends. */
const endMs = 500;
/** Before the first session, a client can only have a URL of an earlier daemon: its 404 may be this late. */
const firstLookMs = 1_000;

export class StreamServer implements AsyncDisposable {
  readonly #listener: Descriptor;
  readonly #poller: Poller;
  readonly #log: Log;
  readonly #idleMs: number;
  readonly #stuckMs: number | undefined;
  readonly #acceptedMax: number;
  readonly #tokens = new Tokens<StreamSession>();
  readonly #clients = new Map<ByteStream, Promise<void>>();
  readonly #unaccepted = new Lobby<ByteStream>({
    peersMax: unacceptedMax,
    deadlineMs: headMs,
    graceMs,
    expel: (stream) => stream.close(),
  });
  readonly port: number;
  /** Looks for clients until #accepting begins, which needs the poller's thread. */
  readonly #firstLook: NodeJS.Timeout;
  #accepting: Promise<void> | undefined;
  /** The clients that are served, by their pods. */
  readonly #accepted = new Shares<ByteStream>();
  #served = 0;
  #closed = false;

  /** port 0: a free one. @throws CriError FAILED_PRECONDITION if it is in use, or the address not the node's. */
  constructor(options: {
    address: string;
    port: number;
    poller: Poller;
    log: Log;
    idleMs: number;
    stuckMs?: number;
    acceptedMax?: number;
  }) {
    this.#poller = options.poller;
    this.#log = options.log;
    this.#idleMs = options.idleMs;
    this.#stuckMs = options.stuckMs;
    this.#acceptedMax = options.acceptedMax ?? usualAcceptedMax;
    try {
      const { listener, port } = listenTcp(options.address, options.port);
      [this.#listener, this.port] = [listener, port];
    } catch (cause) {
      const message = `cannot serve streams: ${messageOf(cause)}: set stream-server-address to an address of this node, and websocket-server-listening-port to another port, or 0 for a free one`;
      throw new CriError("FAILED_PRECONDITION", message, { cause });
    }
    this.#firstLook = setInterval(() => {
      if (hasInput(this.#listener)) this.#beginToAccept();
    }, firstLookMs).unref();
  }

  /** Counts the clients that have disconnected. */
  get served(): number {
    return this.#served;
  }

  get clients(): number {
    return this.#clients.size;
  }

  /** Returns the path of a URL for one use. */
  offer(session: StreamSession): string {
    const path = `/${session.kind}/${this.#tokens.put(session)}`;
    this.#beginToAccept();
    return path;
  }

  #beginToAccept(): void {
    clearInterval(this.#firstLook);
    this.#accepting ??= this.#acceptAll();
  }

  async #acceptAll(): Promise<void> {
    for (let taken = 0; !this.#closed;) {
      try {
        const waitMs = this.#unaccepted.roomInMs();
        if (waitMs > 0) {
          await sleep(waitMs);
          continue;
        }
        const connection = accept(this.#listener);
        if (connection === undefined) await this.#poller.readable(this.#listener);
        else this.#start(new ByteStream(connection, this.#poller));
        if (++taken % acceptsMax === 0) await nextTurn();
      } catch (error) {
        // For example out of descriptors: connected clients continue.
        const message = "accepting a stream client failed, retrying in 100 ms";
        this.#log.error(message, { error: messageOf(error) });
        await sleep(100);
      }
    }
  }

  #start(stream: ByteStream): void {
    this.#unaccepted.enter(stream);
    const client = this.#serve(stream)
      .catch((error: unknown) => {
        this.#log.debug("a stream failed", { error: messageOf(error), code: codeOf(error) });
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
    await stream.readable(); // a silent client costs no buffer
    if (stream.closed) return;
    let request: Awaited<ReturnType<typeof readHead>>;
    try {
      request = await readHead(stream);
    } catch (error) {
      if (stream.closed) return;
      return this.#refuse(stream, { status: "400 Bad Request", message: messageOf(error) });
    }
    const { head, rest } = request;
    const session = this.#sessionOf(head.line);
    if ("status" in session) return this.#refuse(stream, session);
    const upgrade = negotiate(head, session);
    if ("status" in upgrade) return this.#refuse(stream, upgrade);
    if (!this.#unaccepted.leave(stream)) return;
    this.#accepted.add(session.pod, stream);
    try {
      await this.#run(stream, { rest, session, upgrade });
    } finally {
      this.#accepted.remove(session.pod, stream);
    }
  }

  async #refuse(stream: ByteStream, answer: Refused): Promise<void> {
    await refuse(stream, answer);
    await linger(stream, this.#stuckMs); // its request may have a body
  }

  async #run(
    stream: ByteStream,
    { rest, session, upgrade }: { rest: Wire; session: StreamSession; upgrade: Accepted },
  ): Promise<void> {
    await stream.send(headText("HTTP/1.1 101 Switching Protocols", upgrade.headers));
    const hangup = new AbortController();
    using _ = this.#closeWhenIdle(stream);
    using unread = new DisposableStack();
    stream.onHangup(() => {
      hangup.abort();
      if (!unread.disposed) unread.use(closeWhenUnread(stream, this.#stuckMs));
    });
    try {
      await session.serve(rest, upgrade, hangup.signal);
      if (!hangup.signal.aborted) await linger(stream, this.#stuckMs);
    } finally {
      hangup.abort();
    }
  }

  /** Takes the token last: that uses it up. */
  #sessionOf(line: string): StreamSession | Refused {
    const request = parseRequestLine(line);
    if ("status" in request) return request;
    const pod = this.#tokens.find(request.token)?.pod;
    if (pod !== undefined && !this.#hasPlaceFor(pod)) {
      const message = `${this.#acceptedMax} streams are open, ${this.#accepted.countOf(pod)} of this pod: close some, or retry later`;
      return { status: "503 Service Unavailable", message };
    }
    const session = this.#tokens.take(request.token);
    if (session !== undefined && session.kind === request.kind) return session;
    const message =
      "this URL is unknown, used or expired: each is valid for one use within a minute";
    return { status: "404 Not Found", message };
  }

  /** Disconnects a client of the pod that has most, if there is no place left, and that pod has more than this one. */
  #hasPlaceFor(pod: string): boolean {
    if (this.#accepted.size < this.#acceptedMax) return true;
    const { owner, items } = this.#accepted.most()!;
    if (items.size <= this.#accepted.countOf(pod) + 1) return false;
    const [first, ...others] = items;
    const idlest = others.reduce((one, other) => (other.idleMs > one.idleMs ? other : one), first!);
    const fields = { pod: owner, streams: items.size, idleMs: Math.round(idlest.idleMs) };
    this.#log.info(
      `${this.#acceptedMax} streams are open: closing the idlest of the pod with most`,
      fields,
    );
    this.#accepted.remove(owner, idlest);
    idlest.close();
    return true;
  }

  #closeWhenIdle(stream: ByteStream): Disposable {
    let timer: ReturnType<typeof setTimeout>;
    const check = () => {
      const left = this.#idleMs - stream.idleMs;
      if (left > 0) {
        timer = setTimeout(check, left);
        timer.unref();
        return;
      }
      this.#log.info("closing an idle stream", { idleMs: Math.round(stream.idleMs) });
      stream.close();
    };
    check();
    return { [Symbol.dispose]: () => clearTimeout(timer) };
  }

  /** Disconnects all clients, which ends their commands. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    clearInterval(this.#firstLook);
    this.#poller.forget(this.#listener);
    this.#listener.close();
    this.#unaccepted[Symbol.dispose]();
    for (const stream of this.#clients.keys()) stream.close();
    const ended = Promise.allSettled([this.#accepting, ...this.#clients.values()]);
    await Promise.race([ended, sleep(endMs, undefined, { ref: false })]);
  }
}

/** After a client's hangup, closes the connection when it takes nothing of what waits for it: it may be half-closed. */
function closeWhenUnread(stream: ByteStream, stuckMs?: number): Disposable {
  const left = () => (stream.closed ? 0 : unsentBytes(stream.descriptor));
  // With nothing left for it, the session may still pass on what the client has sent.
  const giveUp = () => left() > 0 && stream.close();
  return whenStuck(left, giveUp, stuckMs);
}

type Accepted = Upgrade & { headers: [string, string][] };

/** Returns the kind and token of the URL; both are "" if it has another form. */
export function parseRequestLine(line: string): { kind: string; token: string } | Refused {
  const match = /^(\S+) (?:https?:\/\/[^\s/]+)?(\/\S*) HTTP\/1\.[01]$/.exec(line);
  if (match === null) {
    return { status: "400 Bad Request", message: "the request is not HTTP/1.1 or HTTP/1.0" };
  }
  const [, method, path] = match;
  if (method !== "GET" && method !== "POST") {
    const message = `${method} is not allowed: request streams with GET or POST`;
    return { status: "405 Method Not Allowed", message, headers: [["Allow", "GET, POST"]] };
  }
  const [, kind = "", token = ""] = /^\/(\w+)\/([\w-]+)(?:\?|$)/.exec(path!) ?? [];
  return { kind, token };
}

/** Chooses the protocol: the client's first choice that the session supports. */
export function negotiate(head: Head, session: StreamSession): Accepted | Refused {
  const connection = words(head, "connection").map((value) => value.toLowerCase());
  const upgrade = words(head, "upgrade").map((value) => value.toLowerCase());
  if (connection.includes("upgrade")) {
    if (upgrade.includes("websocket")) return websocketUpgrade(head, session);
    if (upgrade.includes("spdy/3.1")) return spdyUpgrade(head, session);
  }
  const message =
    "this URL requires the headers Connection: Upgrade and Upgrade: SPDY/3.1 or websocket";
  return { status: "400 Bad Request", message };
}

function spdyUpgrade(head: Head, session: StreamSession): Accepted | Refused {
  const offered = words(head, "x-stream-protocol-version");
  const protocol = offered.find((one) => session.spdy.includes(one));
  if (protocol === undefined && offered.length > 0) {
    const name = "X-Accepted-Stream-Protocol-Versions";
    const headers = session.spdy.map((one): [string, string] => [name, one]);
    return { ...noneOf(offered, session.spdy), headers };
  }
  const chosen = protocol ?? session.spdy.at(-1)!; // old clients name none
  const headers: [string, string][] = [
    ["Connection", "Upgrade"],
    ["Upgrade", "SPDY/3.1"],
    ["X-Stream-Protocol-Version", chosen],
  ];
  return { over: "spdy", protocol: chosen, headers };
}

function websocketUpgrade(head: Head, session: StreamSession): Accepted | Refused {
  if (!head.line.startsWith("GET ")) {
    const message = "request a WebSocket with GET";
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
  // Only if the client named one (RFC 6455, section 4.1).
  if (protocol !== "") headers.push(["Sec-WebSocket-Protocol", protocol]);
  return { over: "websocket", protocol, headers };
}

function noneOf(offered: string[], supported: string[]): Refused {
  const list = (names: string[]) => names.map((name) => name || "none at all").join(", ");
  const message = `unable to upgrade: the client offers ${list(offered)}; supported: ${list(supported)}`;
  return { status: "403 Forbidden", message };
}
