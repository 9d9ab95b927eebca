// Sends one request to one upstream, authorizes it when challenged, and explains a refusal.
import { URL } from "node:url";
import { nowMs } from "../base/clock.ts";
import { jsonValue } from "../base/json.ts";
import { clip } from "../base/text.ts";
import {
  basic,
  mayKnowPostOnly,
  parseChallenges,
  tokenOf,
  tokenRequest,
  type Challenge,
  type TokenRequest,
} from "./auth.ts";
import { isReachable } from "./connection.ts";
import type { Credentials } from "./credentials.ts";
import { isOwnHost, isSameHost, type Tls } from "./endpoint.ts";
import {
  answerEnd,
  discard,
  hostOf,
  httpRequest,
  readAll,
  TransferError,
  type Access,
  type HttpRequest,
  type HttpResponse,
} from "./http_request.ts";
import type { PullSession, Upstream } from "./pull_session.ts";

type RegistryRequest = {
  method?: "GET" | "HEAD";
  /** Follows the repository in the URL. */
  path: string;
  headers: Record<string, string>;
  /** The caller verifies the content's digest. */
  isVerified: boolean;
  signal: AbortSignal;
};

/** A longer wait fails the pull: the kubelet backs off itself, and serialized pulls would queue behind it. */
const retryAfterMsMax = 120_000;
/** A token becomes a header, which registries bound; real ones take a few KiB. */
const tokenAnswerBytesMax = 256 << 10;
const errorBytesMax = 64 << 10;
/** Origins that a request gets authorized at: the registry, another that it redirects to, and their upgrades to TLS. */
const originsMax = 4;
/** How much of a registry's own error a message shows. */
const detailBytesMax = 300;

/** Returns the response if it is 200 or 206. @throws TransferError */
export async function registryRequest(
  session: PullSession,
  upstream: Upstream,
  request: RegistryRequest,
): Promise<HttpResponse> {
  const { method, path, headers, isVerified, signal } = request;
  const { progressTimeoutMs: timeoutMs } = session;
  const url = new URL(`${upstream.url}/${session.repository}${path}`);
  // containerd's convention: a mirror of several registries reads the upstream registry from `ns`.
  if (!isOwnHost(session.domain, url)) url.searchParams.set("ns", session.domain);
  await assertReachable(upstream, signal);
  const accessAt = (to: URL, isOwn: boolean) => accessTo(upstream, to, isOwn);
  const endsAtMs = answerEnd(timeoutMs);
  const limits = { timeoutMs, endsAtMs, signal };
  const sent = { method, url: url.href, headers, accessAt, isVerified, ...limits };
  const origins = new Set<string>();
  for (;;) {
    const response = await httpRequest(sent);
    if (response.status === 200 || response.status === 206) return response;
    const detail = await errorDetail(response, secretsOf(upstream));
    const challenges = parseChallenges(response.headers.get("www-authenticate") ?? "");
    const { host, isOwn } = response;
    const { origin } = response.url;
    if (isOwn) upstream.isRegistry ||= isFromRegistry(response, challenges, detail);
    // Once per origin: a cached token may have expired, the one obtained here has not.
    const isLast = origins.has(origin) || origins.size === originsMax;
    const isOther = !isSameHost(url, response.url);
    const canAnswer = isOwn || (isOther && challenges.some(isBearer));
    if (response.status !== 401 || isLast || !canAnswer) throw refusal(response, host, detail);
    origins.add(origin);
    const from = { host, origin, isOwn, challenges, limits };
    keepAuthorization(upstream, origin, await authorize(session, upstream, from));
  }
}

/** Forgets those of the oldest origins: a hostile registry may redirect each request of a pull to another one. */
function keepAuthorization({ authorizations }: Upstream, origin: string, line: string): void {
  delete authorizations[origin]; // the newest are last
  authorizations[origin] = line;
  const oldest = Object.keys(authorizations).slice(0, -originsMax);
  for (const key of oldest) delete authorizations[key];
}

/**
 * Returns what a URL gets of an upstream's secrets: all if it isOwn (HttpResponse); another host only the token that it
 * has given. The upstream's host gets nothing from another host's redirect, which would choose what is requested with
 * the secrets.
 */
function accessTo(
  { url, authorizations, headers, tls }: Upstream,
  to: URL,
  isOwn: boolean,
): Access {
  const own = new URL(url);
  if (isOwn) {
    const authorization = authorizations[to.origin] ?? authorizations[own.origin];
    return { headers: { ...headers, ...(authorization && { authorization }) }, tls };
  }
  const authorization = isSameHost(own, to) ? undefined : authorizations[to.origin];
  return { headers: authorization ? { authorization } : {}, tls: withoutCertificate(tls) };
}

function withoutCertificate(tls: Tls): Tls {
  return { ...tls, cert: undefined, key: undefined };
}

/** Plain web servers refuse requests too, but without any mark of the distribution protocol. */
function isFromRegistry({ headers }: HttpResponse, challenges: Challenge[], detail: string) {
  const hasVersion = headers.has("docker-distribution-api-version");
  return hasVersion || detail !== "" || challenges.some(isBearer);
}

function isBearer({ scheme }: Challenge): boolean {
  return scheme === "bearer";
}

/** Lets a mirror that is down fail after its dial_timeout instead of the longer progress timeout. */
async function assertReachable(upstream: Upstream, signal: AbortSignal): Promise<void> {
  const { url, dialTimeoutMs } = upstream;
  if (dialTimeoutMs === undefined || upstream.isReachable) return;
  upstream.isReachable = await isReachable(url, dialTimeoutMs, signal);
  if (upstream.isReachable || signal.aborted) return;
  const message = `${hostOf(url)}: no connection within ${dialTimeoutMs} ms (dial_timeout)`;
  throw new TransferError("UNAVAILABLE", message, { mayRetry: true });
}

/** A 401 of the upstream's own host, or of another one that it redirects to. */
type Refused = {
  host: string;
  origin: string;
  isOwn: boolean;
  challenges: Challenge[];
  /** Of the refused request. */
  limits: Pick<HttpRequest, "timeoutMs" | "endsAtMs" | "signal">;
};

/** Returns the Authorization header that meets the challenges. @throws TransferError UNAUTHENTICATED. */
async function authorize(session: PullSession, upstream: Upstream, from: Refused): Promise<string> {
  const { host, isOwn, challenges } = from;
  const bearer = challenges.find(isBearer);
  // The credentials are for the upstream: a host that it redirects to gets an anonymous token.
  const { credentials, problem }: Partial<Upstream["auth"]> = isOwn ? upstream.auth : {};
  if (problem !== undefined) {
    throw new TransferError("UNAUTHENTICATED", `${host} requires credentials, but ${problem}`);
  }
  if (credentials?.registryToken !== undefined) {
    return `Bearer ${tokenOf({ token: credentials.registryToken }, "registry_token")}`;
  }
  if (bearer !== undefined) {
    return await bearerToken(session, upstream, { ...from, bearer, credentials });
  }
  if (challenges.some(({ scheme }) => scheme === "basic") && credentials?.username) {
    return basic(credentials);
  }
  throw new TransferError("UNAUTHENTICATED", `${host} requires a user name and a password`);
}

async function bearerToken(
  { repository }: PullSession,
  upstream: Upstream,
  o: Refused & { bearer: Challenge; credentials: Credentials | undefined },
): Promise<string> {
  const { origin, isOwn, bearer, credentials, limits } = o;
  // Another host may have the repository under another name, and refuse tokens for one that it does not have.
  const isNamed = !isOwn && Boolean(bearer.params.get("scope"));
  const scope = isNamed ? undefined : `repository:${repository}:pull`;
  const options = { scope, credentials, registryUrl: origin };
  const request = tokenRequest(bearer, options);
  const realm = new URL(request.url);
  const isPlain = origin.startsWith("https:") && realm.protocol === "http:";
  // As in containerd, the token service that the upstream names gets the upstream's headers.
  const named = isOwn && !isPlain ? upstream.headers : {};
  const own = new URL(upstream.url);
  const ask = async ({ url, method, body, headers }: TokenRequest) => {
    const accessAt = (to: URL, isRealm: boolean): Access => ({
      headers: isRealm ? { ...named, ...headers } : {},
      tls: accessTo(upstream, to, isOwn && isRealm && isSameHost(own, to)).tls,
    });
    return await httpRequest({ url, method, body, headers: {}, accessAt, ...limits });
  };
  let response = await ask(request);
  if (request.method === "GET" && credentials?.username && mayKnowPostOnly(response.status)) {
    await discard(response);
    response = await ask(tokenRequest(bearer, { ...options, byForm: true }));
  }
  const service = `token service ${response.host}`;
  if (response.status !== 200) {
    throw refusal(response, service, await errorDetail(response, secretsOf(upstream)));
  }
  await assertNoWebPage(response, service);
  const bytes = await readAll(response, {
    bytesMax: tokenAnswerBytesMax,
    what: `the answer of ${service}`,
  });
  return `Bearer ${tokenOf(jsonOrNone(bytes), service)}`;
}

/** @throws TransferError for the HTML of a login page or a captive proxy. */
export async function assertNoWebPage(response: HttpResponse, host: string): Promise<void> {
  if (!isWebPage(response)) return;
  await discard(response);
  const message = `${host} answered with a web page: is a login page or a proxy in between?`;
  throw new TransferError("UNAVAILABLE", message);
}

export function isWebPage({ headers }: Pick<HttpResponse, "headers">): boolean {
  return /^\s*text\/html\b/i.test(headers.get("content-type") ?? "");
}

function jsonOrNone(bytes: Buffer): unknown {
  try {
    return jsonValue(bytes.toString("utf8"));
  } catch {
    return undefined;
  }
}

/** Values that no message may show; the longest first, as one may be a part of another. */
function secretsOf({ auth: { credentials = {} }, authorizations, headers }: Upstream): string[] {
  const { username, password, identityToken, registryToken } = credentials;
  const lines = [...Object.values(authorizations), ...Object.values(headers)];
  if (username) lines.push(basic(credentials)); // token services get it
  for (const secret of [identityToken, password]) {
    if (secret) lines.push(new URLSearchParams({ a: secret }).toString().slice(2)); // in a form
  }
  const tokens = lines.map((line) => line.split(" ").at(-1)); // without the scheme
  return [password, identityToken, registryToken, ...lines, ...tokens]
    .filter((secret) => typeof secret === "string")
    .filter(Boolean)
    .toSorted((a, b) => b.length - a.length);
}

/** The registry's first error message; it may echo secrets of the request, which are masked. */
async function errorDetail(response: HttpResponse, secrets: string[]): Promise<string> {
  const bytes = await readAll(response, { bytesMax: errorBytesMax, what: "error" }).catch(() =>
    Buffer.alloc(0),
  );
  const parsed = jsonOrNone(bytes) as { errors?: { message?: unknown }[] } | undefined;
  const message = Array.isArray(parsed?.errors) ? parsed.errors[0]?.message : undefined;
  if (typeof message !== "string") return "";
  const safe = secrets.reduce((shown, secret) => shown.replaceAll(secret, "…"), message);
  return `: ${clip(safe, detailBytesMax)}`;
}

/** Explains a status that is an error. */
export function refusal(
  { status, headers }: Pick<HttpResponse, "status" | "headers">,
  host: string,
  detail: string,
): TransferError {
  const message = `${host} answered ${status}${detail}`;
  if (status === 401) return new TransferError("UNAUTHENTICATED", message);
  if (status === 403) return new TransferError("PERMISSION_DENIED", message);
  if (status === 404 || status === 410) return new TransferError("NOT_FOUND", message);
  if (status === 407) {
    const hint = "set HTTP_PROXY and HTTPS_PROXY to http://user:password@host:port";
    return new TransferError("UNAVAILABLE", `the proxy requires a password (407): ${hint}`);
  }
  const isBusy = status === 429;
  const code = isBusy ? "RESOURCE_EXHAUSTED" : "UNAVAILABLE";
  if (!isBusy && status !== 408 && status < 500)
    return new TransferError(code, message, { status });
  const retryAfterMs = retryAfter(headers.get("retry-after") ?? "");
  if (retryAfterMs <= retryAfterMsMax) {
    return new TransferError(code, message, { mayRetry: true, retryAfterMs, status });
  }
  const later = `its Retry-After of ${Math.round(retryAfterMs / 1000)} s is too long to wait`;
  return new TransferError(code, `${message}; ${later}`);
}

/** Parses seconds or a date (RFC 9110, 10.2.3) into milliseconds from now; 0 for anything else. */
function retryAfter(text: string): number {
  const ms = /^\d+$/.test(text) ? Number(text) * 1000 : Date.parse(text) - nowMs();
  return Math.max(ms || 0, 0);
}
