// Serves grpc.health.v1, and the texts of /healthz and /readyz.
import { once } from "node:events";
import { CriError } from "../base/errors.ts";
import { grpc as messages } from "../proto/messages.js";
import type { HealthCheckRequest, HealthCheckResponse } from "../proto/health_types.ts";
import type { HttpAnswer } from "../stats/metrics_server.ts";
import type { Call, Context } from "./context.ts";
import { textOf, type Problem } from "../node/health.ts";
import { networkCondition } from "./network_condition.ts";

const { ServingStatus } = messages.health.v1;

/** "" stands for the daemon as a whole. */
const services = [
  "",
  "grpc.health.v1.Health",
  "runtime.v1.RuntimeService",
  "runtime.v1.ImageService",
  "isulad.v1.NodeService",
];

/** @throws CriError NOT_FOUND for a service that is not served. */
export async function healthCheck(
  { health }: Pick<Context, "health">,
  { service }: HealthCheckRequest,
): Promise<HealthCheckResponse> {
  if (!services.includes(service ?? "")) throw unknownService(service ?? "");
  return answerOf(await health.problems());
}

/** Sends SERVICE_UNKNOWN, and nothing more, for a service that is not served. */
export async function healthWatch(
  { health }: Pick<Context, "health">,
  { service }: HealthCheckRequest,
  { signal }: Call,
  send: (response: HealthCheckResponse) => Promise<void>,
): Promise<void> {
  if (!services.includes(service ?? "")) {
    await send({ status: ServingStatus.SERVICE_UNKNOWN });
    if (!signal.aborted) await once(signal, "abort");
    return;
  }
  let last: HealthCheckResponse["status"];
  for await (const problems of health.changes(signal)) {
    const { status } = answerOf(problems);
    if (status !== last) await send({ status });
    last = status;
  }
}

function answerOf(problems: readonly Problem[]): HealthCheckResponse {
  const { SERVING, NOT_SERVING } = ServingStatus;
  return { status: problems.length === 0 ? SERVING : NOT_SERVING };
}

function unknownService(service: string): CriError {
  const known = services.filter((name) => name !== "").join(", ");
  return new CriError("NOT_FOUND", `no service ${service} is served here; known are ${known}`);
}

/** Answers /readyz: pods can be run, and reach their network. isServing: the sockets are open. */
export async function readiness(
  { health, ...asked }: Pick<Context, "health"> & Parameters<typeof networkCondition>[0],
  isServing: boolean,
): Promise<HttpAnswer> {
  if (!isServing) return { status: "503 Service Unavailable", body: "starting\n" };
  const [problems, network] = await Promise.all([health.problems(), networkCondition(asked)]);
  const lines = problems.length > 0 ? [`runtime: ${textOf(problems)}`] : [];
  if (!network.status) lines.push(`network: ${network.message}`);
  if (lines.length === 0) return { status: "200 OK", body: "ok\n" };
  return { status: "503 Service Unavailable", body: `${lines.join("\n")}\n` };
}
