// One request to one endpoint, with the authorization that it asks for, and what its refusal means.
import { nowMs } from "../base/clock.ts";
import { URL } from "node:url";
import { jsonValue } from "../base/json.ts";
import { clip } from "../base/text.ts";
import { basic, parseChallenges, tokenOf, tokenRequest, type Challenge } from "./auth.ts";
import { isReachable } from "./connection.ts";
import { isOwnHost } from "./hosts.ts";
import type { Session } from "./pull_session.ts";
import { discard, hostOf, readAll, transfer, TransferError, type Transfer } from "./transfer.ts";

export type Question = {
  /** Of the endpoint. */
  index: number;
  /** After the repository. */
  path: string;
  headers: Record<string, string>;
  signal: AbortSignal;
};

/** A kubelet's own back-off goes on from there, and other pulls may wait for this one. */
const retryAfterMsMax = 120_000;
/** A token goes into a header, and registries bound those: real ones have a few KiB. */
const tokenAnswerBytesMax = 256 << 10;
/** How much of a registry's own words a message has. */
const detailBytesMax = 300;

/** Its answer, 200 or 206. @throws TransferError */
export async function ask(session: Session, question: Question): Promise<Transfer> {
  const { index, path, signal } = question;
  const endpoint = session.endpoints[index]!;
  const url = new URL(`${endpoint.url}/${session.repository}${path}`);
  // A mirror of several registries learns from ns which of them is meant.
  if (!isOwnHost(session.domain, url.host)) url.searchParams.set("ns", session.domain);
  await reach(session, index, signal);
  for (let attempt = 0; ; attempt++) {
    const headers = { ...endpoint.headers, ...question.headers };
    const authorization = session.authorizations[index];
    if (authorization) headers["authorization"] = authorization;
    const timeoutMs = session.progressTimeoutMs;
    const tls = endpoint.tls;
    const answer = await transfer({ url: url.href, headers, tls, timeoutMs, signal });
    if (answer.status === 200 || answer.status === 206) return answer;
    const detail = await errorDetail(answer, secretsOf(session, index));
    const challenges = parseChallenges(answer.headers.get("www-authenticate") ?? "");
    session.spoke[index] ||= isOfRegistry(answer, challenges, detail);
    // Once: what we have may be too old by now; what was just got is not.
    if (answer.status !== 401 || attempt > 0) throw refusal(answer, url.host, detail);
    session.authorizations[index] = await authorize(session, { index, challenges, signal });
  }
}

/** Web servers refuse too, but not in the words of the distribution protocol. */
function isOfRegistry({ headers }: Transfer, challenges: Challenge[], detail: string): boolean {
  const hasVersion = headers.has("docker-distribution-api-version");
  return hasVersion || detail !== "" || challenges.some(({ scheme }) => scheme === "bearer");
}

/** A mirror that is down is passed over as soon as its dial_timeout says so. */
async function reach(session: Session, index: number, signal: AbortSignal): Promise<void> {
  const { url, dialTimeoutMs } = session.endpoints[index]!;
  if (dialTimeoutMs === undefined || session.reached[index]) return;
  session.reached[index] = await isReachable(url, dialTimeoutMs, signal);
  if (session.reached[index] || signal.aborted) return;
  const message = `${hostOf(url)}: no connection within ${dialTimeoutMs} ms (dial_timeout)`;
  throw new TransferError("UNAVAILABLE", message, { mayRetry: true });
}

type Authorize = { index: number; challenges: Challenge[]; signal: AbortSignal };

async function authorize(session: Session, o: Authorize): Promise<string> {
  const { index, challenges, signal } = o;
  const endpoint = session.endpoints[index]!;
  const host = hostOf(endpoint.url);
  const { credentials, problem } = session.choices[index]!;
  if (problem !== undefined) {
    throw new TransferError("UNAUTHENTICATED", `${host} wants credentials, and ${problem}`);
  }
  if (credentials?.registryToken !== undefined) {
    return `Bearer ${tokenOf({ token: credentials.registryToken }, "registry_token")}`;
  }
  const bearer = challenges.find(({ scheme }) => scheme === "bearer");
  if (bearer !== undefined) {
    const scope = `repository:${session.repository}:pull`;
    const request = tokenRequest(bearer, { scope, credentials, registryUrl: endpoint.url });
    // Who is also the registry may see what the registry sees.
    const isSame = new URL(request.url).origin === new URL(endpoint.url).origin;
    const tls = isSame ? endpoint.tls : { ...endpoint.tls, cert: undefined, key: undefined };
    const headers = isSame ? { ...endpoint.headers, ...request.headers } : request.headers;
    const timeoutMs = session.progressTimeoutMs;
    const answer = await transfer({ ...request, headers, tls, timeoutMs, signal });
    const service = `token service ${hostOf(request.url)}`;
    if (answer.status !== 200) {
      const detail = await errorDetail(answer, secretsOf(session, index));
      throw refusal(answer, service, detail);
    }
    await assertNoWebPage(answer, service);
    const bytes = await readAll(answer, tokenAnswerBytesMax, `the answer of ${service}`);
    return `Bearer ${tokenOf(parseAnswer(bytes), service)}`;
  }
  if (challenges.some(({ scheme }) => scheme === "basic") && credentials?.username) {
    return basic(credentials);
  }
  throw new TransferError("UNAUTHENTICATED", `${host} wants a user name and a password`);
}

/** @throws TransferError where a login page or a proxy's words came instead of the answer. */
export async function assertNoWebPage(answer: Transfer, host: string): Promise<void> {
  if (!isWebPage(answer)) return;
  await discard(answer);
  const message = `${host} answered with a web page: is a login page or a proxy in between?`;
  throw new TransferError("UNAVAILABLE", message);
}

export function isWebPage({ headers }: Transfer): boolean {
  return /^\s*text\/html\b/i.test(headers.get("content-type") ?? "");
}

function parseAnswer(bytes: Buffer): unknown {
  try {
    return jsonValue(bytes.toString("utf8"));
  } catch {
    return undefined;
  }
}

/** What a message must not show of an endpoint, whoever wrote it. */
function secretsOf(session: Session, index: number): string[] {
  const { password, identityToken, registryToken } = session.choices[index]?.credentials ?? {};
  const headers = [
    session.authorizations[index],
    ...Object.values(session.endpoints[index]!.headers),
  ];
  const values = headers.flatMap((line) => [line, line?.split(" ").at(-1)]);
  const all = [password, identityToken, registryToken, ...values];
  return all.filter((secret) => typeof secret === "string" && secret !== "") as string[];
}

/** The registry's own words, if it says any; it may repeat what it was sent. */
async function errorDetail(answer: Transfer, secrets: string[]): Promise<string> {
  const bytes = await readAll(answer, 64 << 10, "error").catch(() => Buffer.alloc(0));
  const parsed = parseAnswer(bytes) as { errors?: { message?: unknown }[] } | undefined;
  const message = Array.isArray(parsed?.errors) ? parsed.errors[0]?.message : undefined;
  if (typeof message !== "string") return "";
  const safe = secrets.reduce((shown, secret) => shown.replaceAll(secret, "…"), message);
  return `: ${clip(safe, detailBytesMax)}`;
}

function refusal(answer: Transfer, host: string, detail: string): TransferError {
  const { status } = answer;
  const message = `${host} answered ${status}${detail}`;
  if (status === 401) return new TransferError("UNAUTHENTICATED", message);
  if (status === 403) return new TransferError("PERMISSION_DENIED", message);
  if (status === 404 || status === 410) return new TransferError("NOT_FOUND", message);
  if (status === 407) {
    const hint = "HTTP_PROXY and HTTPS_PROXY take http://user:password@host:port";
    return new TransferError("UNAVAILABLE", `the proxy wants a password (407): ${hint}`);
  }
  const isBusy = status === 429;
  const code = isBusy ? "RESOURCE_EXHAUSTED" : "UNAVAILABLE";
  if (!isBusy && status !== 408 && status < 500) return new TransferError(code, message);
  const retryAfterMs = retryAfter(answer.headers.get("retry-after") ?? "");
  if (retryAfterMs <= retryAfterMsMax) {
    return new TransferError(code, message, { mayRetry: true, retryAfterMs });
  }
  const later = `it wants to be asked again in ${Math.round(retryAfterMs / 1000)} s`;
  return new TransferError(code, `${message}; ${later}`);
}

/** Seconds or a date (RFC 9110, 10.2.3), in milliseconds from now; 0 for none. */
function retryAfter(text: string): number {
  const ms = /^\d+$/.test(text) ? Number(text) * 1000 : Date.parse(text) - nowMs();
  return Math.max(ms || 0, 0);
}
