// Serves Prometheus metrics and health by HTTP, without access control. Each connection is for one request and has a
// short deadline, so that silent clients keep no reader out.
import { createServer, type AddressInfo, type Socket } from "node:net";
import { CriError, messageOf } from "../base/errors.ts";
import { Lobby } from "../base/lobby.ts";
import type { Log } from "../base/log.ts";
import { headText, readHead } from "../sys/http_upgrade.ts";
import { listenWhenPresent } from "../sys/listen.ts";
import { hostPort } from "../sys/socket_address.ts";
import { wireOf } from "../sys/socket_wire.ts";

/**
 * Concurrent connections; usually there is one reader. Far more than node accepts from the listener's
 * queue at once (512), so that each gets its turn before others can push it out.
 */
const connectionsMax = 2048;
/** Deadline from the connection to the end of the response. */
const requestMs = 5_000;

/** status: as in the first line of a response. */
export type HttpAnswer = { status: string; body: string };
/** Makes the answers, by path. */
export type Pages = Record<string, () => HttpAnswer | Promise<HttpAnswer>>;

/**
 * port 0: a free one. An address that is not the node's is tried again (sys/listen.ts).
 * @throws CriError FAILED_PRECONDITION when the port is taken.
 */
export async function serveMetrics(
  { address, port }: { address: string; port: number },
  { pages, log }: { pages: Pages; log: Log },
): Promise<AsyncDisposable & { port: number }> {
  const connections = new Lobby<Socket>({
    peersMax: connectionsMax,
    deadlineMs: requestMs,
    graceMs: 0,
    expel: (socket) => socket.destroy(),
  });
  // A client that closes its own direction after the request gets the answer (RFC 9112, 9.6).
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    connections.enter(socket);
    socket.once("close", () => connections.leave(socket));
    socket.on("error", () => {}); // reads and writes report it
    respondTo(socket, pages).catch((error: unknown) => {
      log.debug("metrics request failed", { error: messageOf(error) });
      socket.destroy();
    });
  });
  let listening: Disposable;
  try {
    listening = await listenWhenPresent(server, { address, port }, { what: "metrics", log });
  } catch (cause) {
    const message = `cannot serve metrics on ${hostPort(address, port)}: ${messageOf(cause)}: set metrics-port to another port, or to 0 to disable it`;
    throw new CriError("FAILED_PRECONDITION", message, { cause });
  }
  return {
    /** The bound port; while the node does not have the address, the given one (0 if any free port will do). */
    get port() {
      return (server.address() as AddressInfo | null)?.port ?? port;
    },
    async [Symbol.asyncDispose]() {
      listening[Symbol.dispose]();
      const closed = new Promise((resolve) => server.close(resolve));
      connections[Symbol.dispose]();
      await closed;
    },
  };
}

/** @throws when the peer sends no request. */
async function respondTo(socket: Socket, pages: Pages): Promise<void> {
  const { head } = await readHead(wireOf(socket));
  const { status, body, more = [], isHead = false } = await metricsResponse(head.line, pages);
  const response = headText(`HTTP/1.1 ${status}`, [
    ["Content-Type", "text/plain; version=0.0.4; charset=utf-8"],
    ["Content-Length", String(Buffer.byteLength(body))],
    ["Connection", "close"],
    ...more,
  ]);
  socket.end(Buffer.concat([response, Buffer.from(isHead ? "" : body)]));
}

type Response = HttpAnswer & { more?: [string, string][]; isHead?: boolean };

/** line: the first line of the request. */
export async function metricsResponse(line: string, pages: Pages): Promise<Response> {
  const [, method, target = ""] = /^(\S+) (\S+) HTTP\/1\.[01]$/.exec(line) ?? [];
  const isHead = method === "HEAD";
  const path = target.replace(/^https?:\/\/[^/]*/, "").split("?", 1)[0]!;
  if (method === undefined) return { status: "400 Bad Request", body: "no HTTP/1.1\n" };
  if (!Object.hasOwn(pages, path)) {
    const body = `only ${Object.keys(pages).join(", ")} are here\n`;
    return { status: "404 Not Found", body, isHead };
  }
  if (method !== "GET" && !isHead) {
    return { status: "405 Method Not Allowed", body: "", more: [["Allow", "GET, HEAD"]] };
  }
  try {
    return { ...(await pages[path]!()), isHead };
  } catch (error) {
    return { status: "500 Internal Server Error", body: `${messageOf(error)}\n`, isHead };
  }
}
