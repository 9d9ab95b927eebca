// Fetches manifests and blobs by the OCI distribution protocol with failover; resumes broken transfers.
import { setTimeout as sleep } from "node:timers/promises";
import { abortError, throwIfAborted } from "../base/abort.ts";
import { digestOf } from "../base/digest.ts";
import { CriError } from "../base/errors.ts";
import { documentBounds } from "../base/json_bounds.ts";
import { Failover, Reconnection, withoutOtherSchemes, type FailoverOptions } from "./failover.ts";
import {
  discard,
  hostOf,
  leastBytes,
  readAll,
  TransferError,
  type HttpResponse,
} from "./http_request.ts";
import type { PullSession, Upstream } from "./pull_session.ts";
import { assertNoWebPage, isWebPage, registryRequest } from "./registry_request.ts";

const manifestTypes = [
  "application/vnd.oci.image.index.v1+json",
  "application/vnd.docker.distribution.manifest.list.v2+json",
  "application/vnd.oci.image.manifest.v1+json",
  "application/vnd.docker.distribution.manifest.v2+json",
];

type Wanted = { tag?: string; digest?: string };
type FetchedManifest = { bytes: Buffer; digest: string };

/** Returns a manifest or index, verified against the digest requested or else the one the registry claims. */
export async function fetchManifest(
  session: PullSession,
  wanted: Wanted,
  signal: AbortSignal,
): Promise<FetchedManifest> {
  return await withFailover(session, manifestPurpose(session, wanted, signal), (upstream) =>
    manifestAt(session, upstream, { wanted, signal }),
  );
}

/**
 * Returns only the digest if isKnown() accepts it, else the manifest, too. Asks for the digest by HEAD, which Docker
 * Hub does not count as a pull; an upstream that answers HEAD without a digest is asked for the manifest at once.
 */
export async function fetchUnlessKnown(
  session: PullSession,
  wanted: Wanted,
  { isKnown, signal }: { isKnown: (digest: string) => Promise<boolean>; signal: AbortSignal },
): Promise<FetchedManifest | { bytes: undefined; digest: string }> {
  const asked = new Set<Upstream>();
  const purpose = manifestPurpose(session, wanted, signal);
  return await withFailover(session, purpose, async (upstream) => {
    if (!asked.has(upstream)) {
      asked.add(upstream);
      const digest = await digestAt(session, upstream, { wanted, signal });
      if (digest !== undefined && (await isKnown(digest))) return { bytes: undefined, digest };
    }
    return await manifestAt(session, upstream, { wanted, signal });
  });
}

function manifestPurpose(session: PullSession, { tag, digest }: Wanted, signal: AbortSignal) {
  const name = digest === undefined ? `:${tag!}` : `@${digest}`;
  const needs: Purpose["needs"] = digest === undefined ? "canResolve" : "canPull";
  return { what: `${session.domain}/${session.repository}${name}`, needs, signal };
}

type ManifestRequest = { wanted: Wanted; signal: AbortSignal };

function manifestRequest({ wanted, signal }: ManifestRequest) {
  const path = `/manifests/${wanted.digest ?? wanted.tag!}`;
  const headers = { accept: manifestTypes.join(", ") };
  return { path, headers, isVerified: wanted.digest !== undefined, signal };
}

async function manifestAt(
  session: PullSession,
  upstream: Upstream,
  request: ManifestRequest,
): Promise<FetchedManifest> {
  const { wanted } = request;
  const response = await registryRequest(session, upstream, manifestRequest(request));
  await assertNoWebPage(response, response.host);
  const name = wanted.digest ?? wanted.tag!;
  const bytes = await readAll(response, {
    bytesMax: documentBounds.bytesMax,
    what: `its manifest ${name}`,
    json: documentBounds,
  });
  const claimed = response.headers.get("docker-content-digest") ?? undefined;
  const expected = wanted.digest ?? (claimed?.startsWith("sha256:") ? claimed : undefined);
  const digest = digestOf(bytes, expected);
  if (expected !== undefined && expected !== digest) throw wrongDigest(upstream, digest);
  return { bytes, digest };
}

/**
 * Returns the digest that the upstream claims for the manifest; undefined if it refuses, claims none, or claims another
 * one than wanted: the answer to the following GET has the reason.
 */
async function digestAt(
  session: PullSession,
  upstream: Upstream,
  request: ManifestRequest,
): Promise<string | undefined> {
  try {
    const head = { ...manifestRequest(request), method: "HEAD" as const };
    const response = await registryRequest(session, upstream, head);
    await discard(response);
    const claimed = response.headers.get("docker-content-digest") ?? undefined;
    const { digest = claimed } = request.wanted;
    return claimed === digest ? digest : undefined;
  } catch (error) {
    const isRefusal = error instanceof TransferError && !error.mayRetry;
    if (isRefusal && error.code !== "DEADLINE_EXCEEDED") return undefined;
    throw error;
  }
}

function wrongDigest({ url }: Upstream, digest: string): TransferError {
  return new TransferError("DATA_LOSS", `${hostOf(url)} sent it with the digest ${digest}`);
}

/** size: absent when the manifest does not state it; the registry's Content-Length counts then. */
type BlobRequest = { digest: string; size?: number | null };
type BlobOptions = {
  signal: AbortSignal;
  /** Runs each connection attempt, so that the caller can prepare for it. */
  around?: <T>(connect: () => Promise<T>) => Promise<T>;
};

/** Streams a blob of exactly `size` bytes, whose digest the caller verifies; resumes after a break. */
export async function* readBlob(
  session: PullSession,
  blob: BlobRequest,
  options: BlobOptions,
): AsyncGenerator<Uint8Array, void, undefined> {
  const { signal, around = (connect) => connect() } = options;
  const what = blobName(session, blob);
  const reconnection = new Reconnection(session.firstBackoffMs);
  const asked = new Set<Upstream>();
  const having = new Set<Upstream>();
  let { size } = blob;
  let at = 0;
  while (at !== size) {
    const startedAt = at;
    let failure = new TransferError("DATA_LOSS", `${what} is cut off`);
    const { body, length, upstream } = await around(() =>
      withFailover(session, { what, needs: "canPull", having, signal }, async (upstream) => {
        asked.add(upstream);
        return {
          ...(await openBlob(session, upstream, { blob: { ...blob, size }, at, signal })),
          upstream,
        };
      }),
    );
    size ??= length;
    having.add(upstream);
    try {
      for await (const chunk of body) {
        at += chunk.length;
        if (at > (size ?? Infinity))
          throw new CriError("DATA_LOSS", `${what} is longer than it should be`);
        yield chunk;
      }
      size ??= at; // neither the manifest nor the registry has stated it
    } catch (error) {
      if (!(error instanceof TransferError)) throw error;
      failure = error;
    }
    if (at === size) return;
    upstream.isFailing = true; // the other upstreams are tried first
    const isNext = (one: Upstream) => one.canPull && !one.isFailing && !asked.has(one);
    const hasOther = withoutOtherSchemes(session.upstreams).some(isNext);
    const least = isSlow(failure) ? leastBytes(session.progressTimeoutMs) : 1;
    const receivedBytes = at - startedAt < least ? 0 : at - startedAt;
    const delayMs = reconnection.afterBreak(receivedBytes, failure, { hasOther });
    await pause(delayMs, what, signal);
  }
}

/** True for a connection that stopped, or brought too little: few bytes before that are no progress. */
function isSlow({ code }: TransferError): boolean {
  return code === "DEADLINE_EXCEEDED";
}

function blobName({ domain, repository }: PullSession, { digest }: BlobRequest): string {
  return `blob ${domain}/${repository}@${digest}`;
}

type OpenBlob = Pick<HttpResponse, "body" | "host" | "headers" | "endsAtMs"> & { length?: number };

async function openBlob(
  session: PullSession,
  upstream: Upstream,
  { blob, at, signal }: { blob: BlobRequest; at: number; signal: AbortSignal },
): Promise<OpenBlob> {
  const headers: Record<string, string> = at > 0 ? { range: `bytes=${at}-` } : {};
  const path = `/blobs/${blob.digest}`;
  const request = { path, headers, isVerified: true, signal };
  const response = await registryRequest(session, upstream, request).catch((error: unknown) => {
    if (at === 0 || !mayRefuseRanges(error)) throw error;
    return registryRequest(session, upstream, { ...request, headers: {} });
  });
  const { status } = response;
  const length = response.headers.get("content-length");
  const start = /^bytes (\d+)-/.exec(response.headers.get("content-range") ?? "")?.[1];
  // Without Content-Range it is taken for what was asked for: the blob's digest decides.
  const isWhole = start === undefined && length !== null && Number(length) === blob.size;
  if (status === 206 && !isWhole && Number(start ?? at) === at) return response;
  // A web server's page is not the blob: another upstream may have it.
  const expected = length === null ? undefined : (blob.size ?? undefined);
  const isOther = expected === undefined ? isWebPage(response) : Number(length) !== expected;
  if ((status === 200 && !isOther) || (status === 206 && isWhole)) {
    const body = at === 0 ? response.body : skip(response.body, at);
    return { ...response, body, ...(length !== null && { length: Number(length) }) };
  }
  await discard(response);
  const content = expected === undefined ? "a web page" : `${length} bytes instead of ${expected}`;
  const offered = status === 206 ? "another range than requested" : content;
  throw new TransferError("DATA_LOSS", `${response.host} offers ${offered}`);
}

/** True for the answer of a registry, a store or a proxy that knows no ranges: the request is sent without one. */
function mayRefuseRanges(error: unknown): boolean {
  return error instanceof TransferError && [400, 416, 501].includes(error.status ?? 0);
}

/** Drops the first `count` bytes, for a server that ignores the Range header. */
async function* skip(body: HttpResponse["body"], count: number): HttpResponse["body"] {
  let left = count;
  for await (const chunk of body) {
    if (chunk.length > left) yield chunk.subarray(left);
    left = Math.max(0, left - chunk.length);
  }
}

/**
 * Returns a small JSON document that is a blob, verified.
 * @throws CriError DATA_LOSS when every upstream's digest differs, RESOURCE_EXHAUSTED above bytesMax, INVALID_ARGUMENT
 * above another bound.
 */
export async function fetchBlob(
  session: PullSession,
  blob: BlobRequest,
  { bytesMax, signal }: { bytesMax: number; signal: AbortSignal },
): Promise<Buffer> {
  const what = blobName(session, blob);
  if ((blob.size ?? 0) > bytesMax) {
    throw new CriError("RESOURCE_EXHAUSTED", `${what} is longer than ${bytesMax} bytes`);
  }
  return await withFailover(session, { what, needs: "canPull", signal }, async (upstream) => {
    const response = await openBlob(session, upstream, { blob, at: 0, signal });
    const bytes = await readAll(response, { bytesMax, what, json: documentBounds });
    const digest = digestOf(bytes, blob.digest);
    if (digest !== blob.digest) throw wrongDigest(upstream, digest);
    return bytes;
  });
}

/**
 * Asks for a blob by HEAD. @returns false when an upstream refuses or cannot tell: its answer to a GET has the reason.
 * @throws CriError when no upstream answers.
 */
export async function offersBlob(
  session: PullSession,
  { digest }: BlobRequest,
  signal: AbortSignal,
): Promise<boolean> {
  const purpose = { what: blobName(session, { digest }), needs: "canPull", signal } as const;
  const path = `/blobs/${digest}`;
  const request = { method: "HEAD", path, headers: {}, isVerified: true, signal } as const;
  return await withFailover(session, purpose, async (upstream) => {
    try {
      const response = await registryRequest(session, upstream, request);
      await discard(response);
      return !isWebPage(response);
    } catch (error) {
      const isRefusal = error instanceof TransferError && !error.mayRetry;
      if (isRefusal && error.code !== "DEADLINE_EXCEEDED") return false;
      throw error;
    }
  });
}

type Purpose = FailoverOptions & { what: string; signal: AbortSignal };

/** Runs `attempt` on one upstream after another until one succeeds. @throws CriError for all failures. */
async function withFailover<T>(
  session: PullSession,
  { what, signal, ...options }: Purpose,
  attempt: (upstream: Upstream) => Promise<T>,
): Promise<T> {
  const failover = new Failover(session, options);
  for (let next = failover.next(); next !== undefined; next = failover.next()) {
    const { upstream, delayMs, failure } = next;
    await pause(delayMs, `${what} (${failure})`, signal);
    try {
      const result = await attempt(upstream);
      failover.succeeded(upstream);
      return result;
    } catch (error) {
      throwIfAborted(what, signal);
      if (!(error instanceof TransferError)) throw error;
      failover.failed(upstream, error);
    }
  }
  throw failover.error(what);
}

async function pause(ms: number, what: string, signal: AbortSignal): Promise<void> {
  if (ms <= 0) return;
  try {
    await sleep(ms, undefined, { signal });
  } catch {
    throw abortError(`waiting ${Math.round(ms / 1000)} s to retry ${what}`, signal);
  }
}
