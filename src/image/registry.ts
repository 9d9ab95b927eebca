// The pulling side of the OCI distribution protocol: manifests and blobs, from the first endpoint
// that has them, with retries, resumption and the registry's own way of asking who we are.
import { setTimeout as sleep } from "node:timers/promises";
import { abortError, throwIfAborted } from "../base/abort.ts";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import {
  basic,
  credentialsFor,
  parseChallenges,
  tokenOf,
  tokenRequest,
  type Challenge,
  type Credentials,
  type RegistryAuth,
} from "./auth.ts";
import { endpointsOf, type Endpoint, type RegistryOptions } from "./hosts.ts";
import { digestOf, manifestBytesMax, manifestTypes } from "./manifest.ts";
import type { Reference } from "./reference.ts";
import { hostOf, readAll, transfer, TransferError, type Transfer } from "./transfer.ts";

/** What is known about one repository. Plain data: it travels to the helper that fetches layers. */
export type Session = {
  domain: string;
  repository: string;
  endpoints: Endpoint[];
  credentials: Credentials | undefined;
  /** Authorization header by endpoint, as far as one was asked for. */
  authorizations: (string | null)[];
  /** The endpoint that answered last is asked first. */
  preferred: number;
  progressTimeoutMs: number;
};

const roundsMax = 4;
const firstBackoffMs = 500;
const retryAfterMsMax = 30_000;
/** Reconnections of one blob that brought nothing, and reconnections in all. */
const fruitlessMax = 3;
const reconnectionsMax = 100;

export async function openSession(
  ref: Reference,
  options: RegistryOptions,
  auth: RegistryAuth | undefined,
): Promise<Session> {
  const endpoints = await endpointsOf(ref.domain, options);
  return {
    domain: ref.domain,
    repository: ref.path,
    endpoints,
    credentials: credentialsFor(ref.domain, auth),
    authorizations: endpoints.map(() => null),
    preferred: 0,
    progressTimeoutMs: options.progressTimeoutMs,
  };
}

/** A manifest or index by tag or digest, its bytes checked against its digest. */
export async function fetchManifest(
  session: Session,
  wanted: { tag?: string; digest?: string },
  signal: AbortSignal,
): Promise<{ bytes: Buffer; digest: string }> {
  const name = wanted.digest ?? wanted.tag!;
  const isTag = wanted.digest === undefined;
  const what = `${session.domain}/${session.repository}${isTag ? ":" : "@"}${name}`;
  return await overEndpoints(session, { what, isTag, signal }, async (index) => {
    const headers = { accept: manifestTypes.join(", ") };
    const path = `/manifests/${name}`;
    const answer = await ask(session, { index, path, headers, signal });
    const bytes = await readAll(answer, manifestBytesMax, what);
    const claimed = answer.headers.get("docker-content-digest") ?? undefined;
    const expected = wanted.digest ?? (claimed?.startsWith("sha256:") ? claimed : undefined);
    const digest = digestOf(bytes, expected);
    if (expected !== undefined && expected !== digest) {
      const host = hostOf(session.endpoints[index]!.url);
      throw new TransferError("DATA_LOSS", `${host} sent it with the digest ${digest}`);
    }
    return { bytes, digest };
  });
}

export type BlobRequest = { digest: string; size: number };
export type BlobOptions = {
  signal: AbortSignal;
  /** Runs each connection attempt, so that the caller can prepare for what that needs. */
  around?: <T>(connect: () => Promise<T>) => Promise<T>;
};

/** The session without its mirrors, or undefined where it has none. */
export function withoutMirrors(session: Session): Session | undefined {
  const isOrigin = (_: unknown, index: number) => session.endpoints[index]!.isOrigin;
  const endpoints = session.endpoints.filter(isOrigin);
  if (endpoints.length === session.endpoints.length) return undefined;
  const authorizations = session.authorizations.filter(isOrigin);
  return { ...session, endpoints, authorizations, preferred: 0 };
}

/** A blob's bytes, exactly `size` of them; a broken transfer goes on where it broke. */
export async function* readBlob(
  session: Session,
  blob: BlobRequest,
  options: BlobOptions,
): AsyncGenerator<Uint8Array, void, undefined> {
  const { signal, around = (connect) => connect() } = options;
  const what = `blob ${session.domain}/${session.repository}@${blob.digest}`;
  let at = 0;
  let fruitless = 0;
  for (let connections = 0; at < blob.size; connections++) {
    const started = at;
    let failure = new TransferError("DATA_LOSS", `${what} is cut off`);
    const answer = await around(() =>
      overEndpoints(session, { what, isTag: false, signal }, (index) =>
        openBlob(session, { index, blob, at, what, signal }),
      ),
    );
    try {
      for await (const chunk of answer) {
        at += chunk.length;
        if (at > blob.size) throw new CriError("DATA_LOSS", `${what} is longer than it should be`);
        yield chunk;
      }
    } catch (error) {
      if (!(error instanceof TransferError)) throw error;
      failure = error;
    }
    if (at === blob.size) return;
    fruitless = at > started ? 0 : fruitless + 1;
    const isSilent = fruitless > 0 && codeOf(failure) === "DEADLINE_EXCEEDED";
    if (isSilent || fruitless > fruitlessMax || connections >= reconnectionsMax) throw failure;
    await pause(firstBackoffMs * 2 ** fruitless, what, signal);
  }
}

type BlobAttempt = {
  index: number;
  blob: BlobRequest;
  at: number;
  what: string;
  signal: AbortSignal;
};

async function openBlob(session: Session, attempt: BlobAttempt): Promise<Transfer["body"]> {
  const { index, blob, at, what, signal } = attempt;
  const headers: Record<string, string> = at > 0 ? { range: `bytes=${at}-` } : {};
  const path = `/blobs/${blob.digest}`;
  const answer = await ask(session, { index, path, headers, signal });
  if (answer.status === 206) {
    const start = /^bytes (\d+)-/.exec(answer.headers.get("content-range") ?? "")?.[1];
    if (Number(start) === at) return answer.body;
    await answer.body.return();
    throw new TransferError("DATA_LOSS", `${what}: not the range that was asked for`);
  }
  return at === 0 ? answer.body : skipping(answer.body, at);
}

/** For a server that knows no ranges: what is there already passes by. */
async function* skipping(body: Transfer["body"], count: number): Transfer["body"] {
  let left = count;
  for await (const chunk of body) {
    if (chunk.length > left) yield chunk.subarray(left);
    left = Math.max(0, left - chunk.length);
  }
}

/** A small blob as a whole, checked. @throws CriError DATA_LOSS when its digest differs. */
export async function fetchBlob(
  session: Session,
  blob: BlobRequest,
  o: { bytesMax: number; signal: AbortSignal },
): Promise<Buffer> {
  const what = `blob ${session.domain}/${session.repository}@${blob.digest}`;
  if (blob.size > o.bytesMax) {
    throw new CriError("RESOURCE_EXHAUSTED", `${what} is longer than ${o.bytesMax} bytes`);
  }
  return await overEndpoints(session, { what, isTag: false, signal: o.signal }, async (index) => {
    const { signal } = o;
    const body = await openBlob(session, { index, blob, at: 0, what, signal });
    const bytes = await readAll({ status: 200, headers: new Headers(), body }, o.bytesMax, what);
    const digest = digestOf(bytes, blob.digest);
    if (digest === blob.digest) return bytes;
    const host = hostOf(session.endpoints[index]!.url);
    throw new TransferError("DATA_LOSS", `${host} sent it with the digest ${digest}`);
  });
}

// -- endpoints and retries ------------------------------------------------------------------------

type Purpose = { what: string; isTag: boolean; signal: AbortSignal };

/** Asks the endpoints in turn, and again after a pause while one of them may do better. */
async function overEndpoints<T>(
  session: Session,
  { what, isTag, signal }: Purpose,
  attempt: (index: number) => Promise<T>,
): Promise<T> {
  const failures = new Map<number, TransferError>();
  let candidates = session.endpoints.map((_, index) => index);
  candidates = candidates.filter((index) => !isTag || session.endpoints[index]!.canResolve);
  candidates.sort((a, b) => Number(b === session.preferred) - Number(a === session.preferred));
  for (let round = 0; candidates.length > 0; round++) {
    let waitMs = firstBackoffMs * 2 ** round;
    for (const index of candidates) {
      try {
        const result = await attempt(index);
        session.preferred = index;
        return result;
      } catch (error) {
        throwIfAborted(what, signal);
        if (!(error instanceof TransferError)) throw error;
        failures.set(index, error);
        waitMs = Math.max(waitMs, error.retryAfterMs);
        // The registry's own word ends it; a mirror's does not.
        if (!error.mayRetry && session.endpoints[index]!.isOrigin) throw refused(what, error);
      }
    }
    candidates = candidates.filter((index) => failures.get(index)?.mayRetry);
    if (round + 1 >= roundsMax) break;
    if (candidates.length > 0) await pause(waitMs, what, signal);
  }
  throw combined(what, failures);
}

function refused(what: string, cause: TransferError): CriError {
  return new CriError(cause.code, `cannot get ${what}: ${messageOf(cause)}`, { cause });
}

function combined(what: string, failures: Map<number, TransferError>): CriError {
  const all = [...failures.values()];
  const last = all.at(-1);
  if (last === undefined) {
    return new CriError(
      "FAILED_PRECONDITION",
      `cannot get ${what}: hosts.toml names nobody to ask`,
    );
  }
  const messages = [...new Set(all.map(messageOf))].join("; ");
  return new CriError(last.code, `cannot get ${what}: ${messages}`, { cause: last });
}

async function pause(ms: number, what: string, signal: AbortSignal): Promise<void> {
  try {
    await sleep(ms, undefined, { signal });
  } catch {
    throw abortError(what, signal);
  }
}

type Question = {
  index: number;
  path: string;
  headers: Record<string, string>;
  signal: AbortSignal;
};

/** One request to one endpoint, with authorization where it asks for it. */
async function ask(session: Session, question: Question): Promise<Transfer> {
  const { index, path, signal } = question;
  const endpoint = session.endpoints[index]!;
  const url = new URL(`${endpoint.url}/${session.repository}${path}`);
  // A mirror of several registries learns from ns which of them is meant.
  if (!endpoint.isOrigin) url.searchParams.set("ns", session.domain);
  for (let attempt = 0; ; attempt++) {
    const headers = { ...endpoint.headers, ...question.headers };
    const authorization = session.authorizations[index];
    if (authorization) headers["authorization"] = authorization;
    const timeoutMs = session.progressTimeoutMs;
    const tls = endpoint.tls;
    const answer = await transfer({ url: url.href, headers, tls, timeoutMs, signal });
    if (answer.status === 200 || answer.status === 206) return answer;
    const detail = await errorDetail(answer);
    if (answer.status === 401 && attempt < 2) {
      const challenges = parseChallenges(answer.headers.get("www-authenticate") ?? "");
      const hadOne = session.authorizations[index] !== null;
      if (!(hadOne && attempt > 0)) {
        session.authorizations[index] = await authorize(session, { endpoint, challenges, signal });
        continue;
      }
    }
    throw refusal(answer, url.host, detail);
  }
}

type Authorize = { endpoint: Endpoint; challenges: Challenge[]; signal: AbortSignal };

async function authorize(session: Session, o: Authorize): Promise<string> {
  const { endpoint, challenges, signal } = o;
  const host = hostOf(endpoint.url);
  // Mirrors are somebody else: what they need stands in hosts.toml's headers.
  const credentials = endpoint.isOrigin ? session.credentials : undefined;
  if (credentials?.registryToken !== undefined) return `Bearer ${credentials.registryToken}`;
  const bearer = challenges.find(({ scheme }) => scheme === "bearer");
  if (bearer !== undefined) {
    const scope = `repository:${session.repository}:pull`;
    const request = tokenRequest(bearer, { scope, credentials, registryUrl: endpoint.url });
    const timeoutMs = session.progressTimeoutMs;
    const tls = { ...endpoint.tls, cert: undefined, key: undefined };
    const answer = await transfer({ ...request, tls, timeoutMs, signal });
    const service = `token service ${hostOf(request.url)}`;
    if (answer.status !== 200) {
      const detail = await errorDetail(answer);
      throw refusal(answer, service, detail);
    }
    const bytes = await readAll(answer, 1 << 20, `the answer of ${service}`);
    return `Bearer ${tokenOf(parseAnswer(bytes), service)}`;
  }
  if (challenges.some(({ scheme }) => scheme === "basic") && credentials?.username) {
    return basic(credentials);
  }
  throw new TransferError("UNAUTHENTICATED", `${host} wants a user name and a password`);
}

function parseAnswer(bytes: Buffer): unknown {
  try {
    return JSON.parse(bytes.toString("utf8"));
  } catch {
    return undefined;
  }
}

/** The registry's own words, if it says any. */
async function errorDetail(answer: Transfer): Promise<string> {
  const bytes = await readAll(answer, 64 << 10, "error").catch(() => Buffer.alloc(0));
  const parsed = parseAnswer(bytes) as { errors?: { message?: unknown }[] } | undefined;
  const message = Array.isArray(parsed?.errors) ? parsed.errors[0]?.message : undefined;
  return typeof message === "string" ? `: ${message.slice(0, 300)}` : "";
}

function refusal(answer: Transfer, host: string, detail: string): TransferError {
  const { status } = answer;
  const message = `${host} answered ${status}${detail}`;
  if (status === 401) return new TransferError("UNAUTHENTICATED", message);
  if (status === 403) return new TransferError("PERMISSION_DENIED", message);
  if (status === 404 || status === 410) return new TransferError("NOT_FOUND", message);
  const seconds = Number(answer.headers.get("retry-after") ?? 0);
  const retryAfterMs = Math.min(seconds > 0 ? seconds * 1000 : 0, retryAfterMsMax);
  if (status === 429) {
    return new TransferError("RESOURCE_EXHAUSTED", message, { mayRetry: true, retryAfterMs });
  }
  const mayRetry = status >= 500 || status === 408;
  return new TransferError("UNAVAILABLE", message, { mayRetry, retryAfterMs });
}
