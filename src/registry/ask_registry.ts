// Asks a registry, without credentials, for what its answer tells of its clock, and TLS of its certificate.
import { URL } from "node:url";
import { failureOf, send, trusted } from "./connection.ts";
import type { Endpoint, Tls } from "./endpoint.ts";
import { proxyFor } from "./proxy.ts";

export type RegistryAnswer = {
  /** Why there is no answer, such as a certificate that is not trusted. */
  problem?: string;
  /** The registry's clock. */
  dateMs?: number;
  /** When its certificate ends; absent by plain HTTP, by a proxy, and where certificates are not verified. */
  certificateEndsMs?: number;
};

/** timeoutMs: bounds each of the two connections. */
export async function askRegistry(
  { url, tls }: Endpoint,
  timeoutMs: number,
): Promise<RegistryAnswer> {
  try {
    const signal = AbortSignal.timeout(timeoutMs);
    const init: RequestInit = { redirect: "manual", signal };
    const response = await send(`${url}/`, init, tls);
    await response.body?.cancel().catch(() => {});
    const dateMs = Date.parse(response.headers.get("date") ?? "");
    return {
      ...(Number.isFinite(dateMs) ? { dateMs } : {}),
      ...(await certificateEnd(new URL(url), tls, timeoutMs)),
    };
  } catch (error) {
    const { name } = error as Error;
    const problem =
      name === "TimeoutError" ? `no answer within ${timeoutMs} ms` : failureOf(error).reason;
    return { problem };
  }
}

async function certificateEnd(
  url: URL,
  tls: Tls,
  timeoutMs: number,
): Promise<Pick<RegistryAnswer, "certificateEndsMs">> {
  if (url.protocol !== "https:" || tls.skipVerify || proxyFor(url) !== undefined) return {};
  const { connect } = await import("node:tls");
  const { isIP } = await import("node:net");
  const host = url.hostname.replace(/^\[(.*)\]$/, "$1");
  const { ca, cert, key } = await trusted(tls);
  const servername = isIP(host) === 0 ? host : undefined;
  const socket = connect({ host, port: Number(url.port) || 443, servername, ca, cert, key });
  return await new Promise((resolve) => {
    const end = (answer: Pick<RegistryAnswer, "certificateEndsMs">) => {
      socket.destroy();
      resolve(answer);
    };
    socket.setTimeout(timeoutMs, () => end({}));
    socket.on("error", () => end({})); // the request before has told what is wrong
    socket.once("secureConnect", () => {
      const endsMs = Date.parse(socket.getPeerCertificate().valid_to);
      end(Number.isFinite(endsMs) ? { certificateEndsMs: endsMs } : {});
    });
  });
}
