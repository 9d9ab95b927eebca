// Describes one address that images can be pulled from, as configured in hosts.toml or daemon.json.
import { URL } from "node:url";
import { CriError } from "../base/errors.ts";

/** Plain data: it is sent to the helper that fetches layers. */
export type Endpoint = {
  /** Prefix of /REPOSITORY/manifests/…; usually ends in /v2, never in a slash. */
  url: string;
  /** The registry itself, not a mirror. */
  isOrigin: boolean;
  /** Serves blobs, and manifests by digest. */
  canPull: boolean;
  /** Serves manifests by tag. */
  canResolve: boolean;
  /** Names are lower case. */
  headers: Record<string, string>;
  tls: Tls;
  /** Bounds the TCP connect; undefined: only progressTimeoutMs applies. */
  dialTimeoutMs?: number;
  /** The file or setting that configures it, for messages. */
  from: string;
};

/** PEM texts instead of paths: the helper cannot open the files. */
export type Tls = {
  /** Trusted in addition to the system CAs. */
  ca?: string[];
  cert?: string;
  key?: string;
  skipVerify: boolean;
  /** Names of the files these were read from, for messages. */
  files?: string[];
};

/** Registries whose host is not their domain. */
export const defaultHosts: Record<string, string> = { "docker.io": "registry-1.docker.io" };

/** Tests whether a URL addresses the registry's own host, by either scheme and with any path. */
export function isOwnHost(domain: string, { protocol, host }: URL): boolean {
  const names = [domain, defaultHosts[domain] ?? domain];
  // Parsed, as URL drops the default port of its scheme.
  return names.some((name) => URL.parse(`${protocol}//${name}`)?.host === host);
}

/** Tests for the same origin, or the same host name by TLS instead of plain HTTP: it may get the same secrets. */
export function isSameHost(from: URL, to: URL): boolean {
  const isUpgrade = from.protocol === "http:" && to.protocol === "https:";
  return to.origin === from.origin || (isUpgrade && to.hostname === from.hostname);
}

/** Returns the name of an endpoint's credentials: the registry's at its own host, else the mirror's host. */
export function credentialsName({ isOrigin, url }: Endpoint, domain: string): string {
  const address = new URL(url);
  return isOrigin || isOwnHost(domain, address) ? domain : address.host;
}

export function withoutScheme(url: string): string {
  return url.replace(/^https?:/, "");
}

/** @throws CriError FAILED_PRECONDITION prefixed with `where`, the setting that holds the address. */
export function registryUrl(text: string, where: string): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url !== undefined && /^https?:$/.test(url.protocol)) return url;
  const shown = text.replace(/\/\/[^/]*@/, "//…@"); // may hold a password
  throw new CriError("FAILED_PRECONDITION", `${where}: ${shown} is not an http or https address`);
}
