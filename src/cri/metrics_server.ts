// Prometheus' metrics by HTTP, for whoever is on this node: it has no access control but loopback. Each
// connection is for one request, and has little time: who is silent keeps no reader out.
import { createServer, type Socket } from "node:net";
import { CriError, messageOf } from "../base/errors.ts";
import { Lobby } from "../base/lobby.ts";
import { headText, readHead } from "../sys/http_upgrade.ts";
import { wireOf } from "../sys/socket_wire.ts";
import type { Context } from "./context.ts";
import { metricsText } from "./metrics_text.ts";

/**
 * Connections at a time; there is one reader as a rule. Many more than node takes of the listener's queue at
 * once (512): all have a turn before they can be out.
 */
const connectionsMax = 2048;
/** From a connection to the end of its answer. */
const requestMs = 5_000;

/** @throws CriError FAILED_PRECONDITION when the port is taken. */
export async function serveMetrics(context: Context, port: number): Promise<AsyncDisposable> {
  const connections = new Lobby<Socket>({
    peersMax: connectionsMax,
    deadlineMs: requestMs,
    graceMs: 0,
    expel: (socket) => socket.destroy(),
  });
  const server = createServer((socket) => {
    connections.enter(socket);
    socket.once("close", () => connections.leave(socket));
    socket.on("error", () => {}); // reads and writes tell
    answer(context, socket).catch((error: unknown) => {
      context.log.debug("a reader of metrics was not answered", { error: messageOf(error) });
      socket.destroy();
    });
  });
  try {
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(port, "127.0.0.1", resolve);
    });
  } catch (cause) {
    const message = `cannot serve metrics on 127.0.0.1:${port}: ${messageOf(cause)}: set metrics-port to another port, or to 0 for none`;
    throw new CriError("FAILED_PRECONDITION", message, { cause });
  }
  server.on("error", (error) => context.log.warn("metrics", { error: error.message }));
  return {
    async [Symbol.asyncDispose]() {
      const closed = new Promise((resolve) => server.close(resolve));
      connections[Symbol.dispose]();
      await closed;
    },
  };
}

/** @throws when the peer sends no request. */
async function answer(context: Context, socket: Socket): Promise<void> {
  const { head } = await readHead(wireOf(socket));
  const [, method, target = ""] = /^(\S+) (\S+) HTTP\/1\.[01]$/.exec(head.line) ?? [];
  const path = target.replace(/^https?:\/\/[^/]*/, "").split("?", 1)[0];
  if (method === undefined) return respond(socket, "400 Bad Request", { body: "no HTTP/1.1\n" });
  if (path !== "/metrics") {
    return respond(socket, "404 Not Found", { body: "only /metrics is here\n" });
  }
  if (method !== "GET" && method !== "HEAD") {
    return respond(socket, "405 Method Not Allowed", { body: "", more: [["Allow", "GET, HEAD"]] });
  }
  respond(socket, "200 OK", { body: metricsText(context), isHead: method === "HEAD" });
}

function respond(
  socket: Socket,
  status: string,
  {
    body,
    more = [],
    isHead = false,
  }: { body: string; more?: [string, string][]; isHead?: boolean },
): void {
  const head = headText(`HTTP/1.1 ${status}`, [
    ["Content-Type", "text/plain; version=0.0.4; charset=utf-8"],
    ["Content-Length", String(Buffer.byteLength(body))],
    ["Connection", "close"],
    ...more,
  ]);
  socket.end(Buffer.concat([head, Buffer.from(isHead ? "" : body)]));
}
