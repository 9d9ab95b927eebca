// Serves the daemon's metrics and health by HTTP, as the keys metrics-… say.
import { setTimeout as sleep } from "node:timers/promises";
import { coalesced } from "./base/coalesced.ts";
import type { Context } from "./cri/context.ts";
import { metricsText } from "./cri/daemon_metrics.ts";
import { readiness } from "./cri/health_service.ts";
import { serveMetrics } from "./stats/metrics_server.ts";

/** Between two readings of the metrics, however many ask: anybody on the node may. */
const restMs = 50;

/** isServing: the CRI sockets are open. @throws CriError FAILED_PRECONDITION for an unusable port or certificate. */
export async function openMetrics(
  context: Context,
  stack: AsyncDisposableStack,
  isServing: () => boolean,
): Promise<void> {
  const { metricsPort: port, metricsAddress: address } = context.config;
  const { metricsTlsCert: cert, metricsTlsKey: key } = context.config;
  if (port === 0) return;
  let rest: Promise<unknown> = Promise.resolve();
  const metrics = coalesced("another reading of the metrics", async () => {
    await rest;
    const body = await metricsText(context);
    rest = sleep(restMs, undefined, { ref: false });
    return body;
  });
  const pages = {
    "/metrics": async () => ({ status: "200 OK", body: await metrics() }),
    "/healthz": () => ({ status: "200 OK", body: "ok\n" }),
    "/readyz": () => readiness(context, isServing()),
  };
  const { log } = context;
  const tls = cert === "" ? undefined : { cert, key };
  const at = tls === undefined ? { address, port } : { address: "127.0.0.1", port: 0 };
  const server = stack.use(await serveMetrics(at, { pages, log }));
  if (tls === undefined) return;
  const { startTlsFront } = await import("./stream/tls_front.ts");
  const options = { address, port, to: server.port, log, what: "metrics" };
  context.tlsServers.metrics = stack.use(await startTlsFront(tls, options));
}
