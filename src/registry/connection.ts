// Sends requests with fetch: chooses the proxy and the trusted CAs, and explains failures.
// The options specific to Bun's fetch are set here; other runtimes ignore them and verify certificates.
import { URL } from "node:url";
import { messageOf } from "../base/errors.ts";
import { systemCas } from "./system_cas.ts";
import type { Tls } from "./endpoint.ts";
import { proxyFor, withoutProxyVariables } from "./proxy.ts";

/** @throws CriError FAILED_PRECONDITION if the proxy variable is wrong. */
export async function send(url: string, init: RequestInit, tls: Tls): Promise<Response> {
  const target = new URL(url);
  const proxy = proxyFor(target);
  const bunOptions = {
    decompress: false,
    ...(proxy !== undefined && { proxy: proxy.url }),
    ...(target.protocol === "https:" && { tls: await tlsOptions(tls) }),
  };
  return await withoutProxyVariables(() => fetch(url, { ...init, ...bunOptions }));
}

async function tlsOptions(tls: Tls) {
  const { cert, key, skipVerify } = tls;
  if (skipVerify) return { cert, key, rejectUnauthorized: false };
  return { ...(await trusted(tls)), rejectUnauthorized: true };
}

/** Returns the CAs that are trusted for an endpoint, and the client's certificate. */
export async function trusted({ ca = [], cert, key }: Tls) {
  return { ca: [...(await systemCas()), ...ca], cert, key };
}

/** Tests whether a TCP connection to the URL's host or its proxy can be made in time. */
export async function isReachable(
  url: string,
  timeoutMs: number,
  signal: AbortSignal,
): Promise<boolean> {
  const { connect } = await import("node:net"); // slow to load, and helpers rarely need it
  const proxy = proxyFor(new URL(url));
  const { protocol, hostname, port } = new URL(proxy?.url ?? url);
  const host = hostname.replace(/^\[(.*)\]$/, "$1");
  const socket = connect({ host, port: Number(port) || (protocol === "https:" ? 443 : 80) });
  return await new Promise((resolve) => {
    const end = (isConnected: boolean) => {
      clearTimeout(timer);
      signal.removeEventListener("abort", stop);
      socket.destroy();
      resolve(isConnected);
    };
    const stop = () => end(false);
    const timer = setTimeout(stop, timeoutMs);
    signal.addEventListener("abort", stop, { once: true });
    socket.once("connect", () => end(true));
    socket.on("error", stop);
  });
}

export type Failure = { reason: string; isFinal: boolean; isUntrusted: boolean };

/** Explains why fetch failed. URLs are removed from its message: they may hold a signature. */
export function failureOf(error: unknown): Failure {
  const code = (error as NodeJS.ErrnoException | undefined)?.code ?? "";
  if (/CERT|SELF_SIGNED|VERIFY|ALTNAME/.test(code)) {
    const [why, cure] = certificateFailures[code] ?? [
      "its certificate is not trusted",
      "add its CA to hosts.toml",
    ];
    const hint = `${cure}, or add the host to insecure-registries`;
    return { reason: `${why} (${code}); ${hint}`, isFinal: true, isUntrusted: true };
  }
  const known = failures[code];
  const isUntrusted = false;
  if (known !== undefined) return { reason: `${known} (${code})`, isFinal: false, isUntrusted };
  const message = messageOf(error)
    .replaceAll(/"?\bhttps?:\/\/\S+/g, "…")
    .replace(/ For more information.*$/s, "");
  const isFinal = code === "ERR_PROXY_TUNNEL" && message.includes(" 407 ");
  return { reason: code === "" ? message : `${message} (${code})`, isFinal, isUntrusted };
}

/** What is wrong, and its cure. */
const certificateFailures: Record<string, [string, string]> = {
  ERR_TLS_CERT_ALTNAME_INVALID: ["its certificate is for another name", "pull by that name"],
  CERT_HAS_EXPIRED: ["its certificate has expired", "renew it, or correct this host's clock"],
  CERT_NOT_YET_VALID: ["its certificate is not valid yet", "correct this host's clock"],
};

const failures: Record<string, string> = {
  ECONNREFUSED: "connection refused",
  ECONNRESET: "connection reset",
  ENOTFOUND: "host name not found",
  EAI_AGAIN: "the name server does not answer",
  ETIMEDOUT: "connection timed out",
  EHOSTUNREACH: "no route to the host",
  ENETUNREACH: "no route to the network",
  EPROTO: "TLS handshake failed: the port does not speak TLS, or requires a client certificate",
};
