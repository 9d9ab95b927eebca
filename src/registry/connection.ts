// How a request leaves this host: through which proxy, trusting whom, and in what words it fails.
// What is Bun's own about fetch stands here; another runtime ignores it, and verifies certificates.
import { connect } from "node:net";
import { URL } from "node:url";
import { messageOf } from "../base/errors.ts";
import { systemAuthorities } from "./system_cas.ts";
import type { Tls } from "./endpoint.ts";
import { proxyFor, withoutProxyVariables } from "./proxy.ts";

/** fetch. @throws CriError FAILED_PRECONDITION when the proxy's variable is wrong. */
export function send(url: string, init: RequestInit, tls: Tls): Promise<Response> {
  const target = new URL(url);
  const proxy = proxyFor(target);
  const { ca = [], cert, key, skipVerify } = tls;
  const trust = skipVerify ? {} : { ca: [...systemAuthorities(), ...ca] };
  const own = {
    decompress: false,
    ...(proxy !== undefined && { proxy: proxy.url }),
    ...(target.protocol === "https:" && {
      tls: { ...trust, cert, key, rejectUnauthorized: !skipVerify },
    }),
  };
  return withoutProxyVariables(() => fetch(url, { ...init, ...own }));
}

/** Whether a connection to where a URL leads comes about in time; it is closed again. */
export function isReachable(url: string, timeoutMs: number, signal: AbortSignal): Promise<boolean> {
  const proxy = proxyFor(new URL(url));
  const { protocol, hostname, port } = new URL(proxy?.url ?? url);
  const host = hostname.replace(/^\[(.*)\]$/, "$1");
  const socket = connect({ host, port: Number(port) || (protocol === "https:" ? 443 : 80) });
  return new Promise((resolve) => {
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

/** Why fetch failed. Its own words may hold a whole URL, and that a signature: none of them is shown. */
export function failureOf(error: unknown): Failure {
  const code = (error as NodeJS.ErrnoException | undefined)?.code ?? "";
  const isCertificate = /CERT|SELF_SIGNED|VERIFY|ALTNAME/.test(code);
  if (isCertificate) {
    const why = certificateFailures[code] ?? "its certificate is not trusted";
    const hint = "add its authority to hosts.toml or the host to insecure-registries";
    return { reason: `${why} (${code}); ${hint}`, isFinal: true, isUntrusted: true };
  }
  const known = failures[code];
  const isUntrusted = false;
  if (known !== undefined) return { reason: `${known} (${code})`, isFinal: false, isUntrusted };
  const words = messageOf(error)
    .replaceAll(/"?\bhttps?:\/\/\S+/g, "…")
    .replace(/ For more information.*$/s, "");
  const isFinal = code === "ERR_PROXY_TUNNEL" && words.includes(" 407 ");
  return { reason: code === "" ? words : `${words} (${code})`, isFinal, isUntrusted };
}

const certificateFailures: Record<string, string> = {
  ERR_TLS_CERT_ALTNAME_INVALID: "its certificate is for another name",
  CERT_HAS_EXPIRED: "its certificate has expired",
  CERT_NOT_YET_VALID: "its certificate is not valid yet: is this host's clock right?",
};

const failures: Record<string, string> = {
  ECONNREFUSED: "nobody listens there",
  ECONNRESET: "the connection was closed",
  ENOTFOUND: "there is no host of that name",
  EAI_AGAIN: "the name server does not answer",
  ETIMEDOUT: "no connection came about",
  EHOSTUNREACH: "there is no way to it",
  ENETUNREACH: "there is no way to it",
  EPROTO: "the TLS handshake failed: it speaks no TLS there, or wants a client certificate",
};
