// Prometheus' metrics by HTTP, for whoever is on this node: it has no access control but loopback.
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { CriError, messageOf } from "../base/errors.ts";
import type { Context } from "./context.ts";
import { metricsText } from "./metrics_text.ts";

/** Readers at a time; there is one as a rule. */
const connectionsMax = 16;
const requestMs = 5_000;

/** @throws CriError FAILED_PRECONDITION when the port is taken. */
export async function serveMetrics(context: Context, port: number): Promise<AsyncDisposable> {
  const server = createServer({ requestTimeout: requestMs }, (request, response) => {
    answer(context, request, response);
  });
  server.maxConnections = connectionsMax;
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
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

function answer(context: Context, request: IncomingMessage, response: ServerResponse): void {
  const [path] = (request.url ?? "").split("?", 1);
  const plain = { "content-type": "text/plain; version=0.0.4; charset=utf-8" };
  if (path !== "/metrics") {
    response.writeHead(404, plain).end("only /metrics is here\n");
  } else if (request.method !== "GET" && request.method !== "HEAD") {
    response.writeHead(405, { ...plain, allow: "GET, HEAD" }).end();
  } else {
    const text = metricsText(context);
    response.writeHead(200, plain).end(request.method === "HEAD" ? undefined : text);
  }
}
