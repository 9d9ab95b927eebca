// Serves the daemon's metrics and health by HTTP, as the keys metrics-… say.
import type { Config } from "./base/config.ts";
import type { Context } from "./cri/context.ts";
import { metricsText } from "./cri/daemon_metrics.ts";
import { readiness } from "./cri/health_service.ts";
import { serveMetrics } from "./stats/metrics_server.ts";
import type { TlsFront } from "./stream/tls_front.ts";

/** isServing: the CRI sockets are open. @throws CriError FAILED_PRECONDITION for a port or certificate. */
export async function openMetrics(
  context: Context,
  stack: AsyncDisposableStack,
  isServing: () => boolean,
): Promise<void> {
  const { metricsPort: port, metricsAddress: address } = context.config;
  if (port === 0) return;
  const pages = {
    "/metrics": async () => ({ status: "200 OK", body: await metricsText(context) }),
    "/healthz": () => ({ status: "200 OK", body: "ok\n" }),
    "/readyz": () => readiness(context, isServing()),
  };
  const { log } = context;
  const tls = metricsTls(context.config);
  const at = tls === undefined ? { address, port } : { address: "127.0.0.1", port: 0 };
  const server = stack.use(await serveMetrics(at, { pages, log }));
  if (tls === undefined) return;
  const { startTlsFront } = await import("./stream/tls_front.ts");
  const options = { address, port, to: server.port, log, what: "metrics" };
  context.metricsFront = stack.use(await startTlsFront(tls, options));
}

/** Reads the certificate again. Returns true if it changed. @throws CriError FAILED_PRECONDITION. */
export function renewMetricsCertificate(front: TlsFront | undefined, config: Config): boolean {
  const tls = metricsTls(config);
  return front !== undefined && tls !== undefined && front.renew(tls);
}

function metricsTls({ metricsTlsCert: cert, metricsTlsKey: key }: Config) {
  return cert === "" ? undefined : { cert, key };
}
