// Chooses the proxy of a request from HTTP_PROXY, HTTPS_PROXY and NO_PROXY, in either case, like Go
// (golang.org/x/net/http/httpproxy): a node that ran containerd keeps its environment.
import { isIP } from "node:net";
import { URL } from "node:url";
import { CriError } from "../base/errors.ts";
import { inNetwork, isLoopback, isSameAddress } from "./ip_network.ts";

export type Environment = Record<string, string | undefined>;

type Proxy = {
  /** Includes user and password. */
  url: string;
  /** The address without user and password, and the variable that names it, for messages. */
  about: string;
};

/** undefined: connect directly. @throws CriError FAILED_PRECONDITION if the variable names no HTTP proxy. */
export function proxyFor(target: URL, env: Environment = process.env): Proxy | undefined {
  const name = target.protocol === "https:" ? "HTTPS_PROXY" : "HTTP_PROXY";
  const { variable, value } = variableOf(env, name);
  if (value === "" || isExempt(target, variableOf(env, "NO_PROXY").value)) return undefined;
  const url = proxyUrl(value, variable);
  return { url: url.href, about: `${url.protocol}//${url.host} (${variable})` };
}

function variableOf(env: Environment, name: string): { variable: string; value: string } {
  const variable = env[name] ? name : name.toLowerCase();
  return { variable, value: env[variable] ?? "" };
}

/** No message shows the value: it may hold a password. */
function proxyUrl(value: string, variable: string): URL {
  const text = /^(?:https?|socks5):\/\//i.test(value) ? value : `http://${value}`;
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url?.protocol === "socks5:") {
    const message = `${variable} names a SOCKS proxy, which is not supported: name an HTTP proxy`;
    throw new CriError("FAILED_PRECONDITION", message);
  }
  if (url !== undefined && url.hostname !== "") return url;
  const message = `${variable} is not the address of a proxy, such as http://proxy.example:3128`;
  throw new CriError("FAILED_PRECONDITION", message);
}

function isExempt(target: URL, noProxy: string): boolean {
  const host = target.hostname.replace(/^\[(.*)\]$/, "$1");
  const port = target.port || (target.protocol === "https:" ? "443" : "80");
  if (isLoopback(host)) return true;
  return noProxy.split(",").some((entry) => matches(entry.trim().toLowerCase(), host, port));
}

function matches(entry: string, host: string, port: string): boolean {
  if (entry === "*" || inNetwork(host, entry)) return true;
  // An IPv6 address without brackets has no port.
  const [, named = entry, onlyPort = ""] = /^(\[.*\]|[^:]*):(.*)$/.exec(entry) ?? [];
  const name = isIP(entry) > 0 ? entry : named;
  if (name === "" || (name === named && onlyPort !== "" && onlyPort !== port)) return false;
  if (isSameAddress(host, name)) return true;
  const suffix = name.replace(/^\*\./, ".");
  return suffix.startsWith(".") ? host.endsWith(suffix) : `.${host}`.endsWith(`.${suffix}`);
}

/** Hides the variables from Bun's fetch, which applies rules of its own even when given a proxy. */
export function withoutProxyVariables<T>(work: () => T): T {
  const hidden = new Map<string, string>();
  for (const name of ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"]) {
    for (const variable of [name, name.toLowerCase()]) {
      const value = process.env[variable];
      if (value === undefined) continue;
      hidden.set(variable, value);
      delete process.env[variable];
    }
  }
  try {
    return work();
  } finally {
    for (const [variable, value] of hidden) process.env[variable] = value;
  }
}
