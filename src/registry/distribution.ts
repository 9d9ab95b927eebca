// The pulling side of the OCI distribution protocol: manifests and blobs, from the first endpoint
// that has them, with retries, resumption and the registry's own way of asking who we are.
import { setTimeout as sleep } from "node:timers/promises";
import { abortError, throwIfAborted } from "../base/abort.ts";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import { ask, assertNoWebPage, isWebPage } from "./registry_request.ts";
import { digestOf } from "../base/digest.ts";
import { withEndpoints, type Session } from "./pull_session.ts";
import { discard, hostOf, readAll, TransferError, type Transfer } from "./transfer.ts";

export type { Session } from "./pull_session.ts";

export const manifestBytesMax = 4 << 20;
const manifestTypes = [
  "application/vnd.oci.image.index.v1+json",
  "application/vnd.docker.distribution.manifest.list.v2+json",
  "application/vnd.oci.image.manifest.v1+json",
  "application/vnd.docker.distribution.manifest.v2+json",
];
const firstBackoffMs = 500;
/** Reconnections of one blob that brought nothing, and reconnections in all. */
const fruitlessMax = 3;
const reconnectionsMax = 100;

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
    await assertNoWebPage(answer, hostOf(session.endpoints[index]!.url));
    const bytes = await readAll(answer, manifestBytesMax, `its manifest ${name}`);
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
  const origins = withEndpoints(session, ({ isOrigin }) => isOrigin);
  return origins.endpoints.length === session.endpoints.length ? undefined : origins;
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
        openBlob(session, { index, blob, at, signal }),
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
  signal: AbortSignal;
};

async function openBlob(session: Session, attempt: BlobAttempt): Promise<Transfer["body"]> {
  const { index, blob, at, signal } = attempt;
  const headers: Record<string, string> = at > 0 ? { range: `bytes=${at}-` } : {};
  const path = `/blobs/${blob.digest}`;
  const answer = await ask(session, { index, path, headers, signal });
  const { headers: answered, status } = answer;
  const start = /^bytes (\d+)-/.exec(answered.get("content-range") ?? "")?.[1];
  if (status === 206 && Number(start) === at) return answer.body;
  // Pages of web servers are no blobs: the next one may have it.
  const length = answered.get("content-length");
  const isOther = length === null ? isWebPage(answer) : Number(length) !== blob.size;
  if (status === 200 && !isOther) return at === 0 ? answer.body : skipping(answer.body, at);
  await discard(answer);
  const host = hostOf(session.endpoints[index]!.url);
  const page = length === null ? "a web page" : `${length} bytes, not ${blob.size}`;
  const why = status === 206 ? "another range than asked for" : page;
  throw new TransferError("DATA_LOSS", `${host} would send ${why}`);
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
    const body = await openBlob(session, { index, blob, at: 0, signal });
    const bytes = await readAll({ status: 200, headers: new Headers(), body }, o.bytesMax, what);
    const digest = digestOf(bytes, blob.digest);
    if (digest === blob.digest) return bytes;
    const host = hostOf(session.endpoints[index]!.url);
    throw new TransferError("DATA_LOSS", `${host} sent it with the digest ${digest}`);
  });
}

// -- endpoints and retries ------------------------------------------------------------------------

type Purpose = { what: string; isTag: boolean; signal: AbortSignal };
type Attempt<T> = (index: number) => Promise<T>;

/** An endpoint that may still be asked. */
type Candidate = { index: number; tries: number; readyAtMs: number };

/** Asks the endpoints in turn, and again after a pause while one of them may do better. */
async function overEndpoints<T>(session: Session, o: Purpose, attempt: Attempt<T>): Promise<T> {
  const { endpoints, unwell } = session;
  const failures = new Map<number, TransferError>();
  let candidates = endpoints.map((_, index): Candidate => ({ index, tries: 0, readyAtMs: 0 }));
  candidates = candidates.filter(
    ({ index }) => endpoints[index]![o.isTag ? "canResolve" : "canPull"],
  );
  candidates.sort((a, b) => Number(unwell[a.index]) - Number(unwell[b.index]));
  while (candidates.length > 0) {
    const next = candidates.reduce((a, b) => (b.readyAtMs < a.readyAtMs ? b : a));
    const { index } = next;
    const why = failures.get(index)?.message ?? "";
    await pause(next.readyAtMs - performance.now(), `${o.what} (${why})`, o.signal);
    try {
      const result = await attempt(index);
      unwell[index] = false;
      session.answered = index;
      session.spoke[index] = true;
      return result;
    } catch (error) {
      throwIfAborted(o.what, o.signal);
      if (!(error instanceof TransferError)) throw error;
      failures.set(index, error);
      unwell[index] = error.mayRetry || error.code === "DEADLINE_EXCEEDED";
      const backoffMs = Math.max(firstBackoffMs * 2 ** next.tries++, error.retryAfterMs);
      next.readyAtMs = performance.now() + backoffMs;
      candidates = remaining(session, { candidates, last: next, failures });
    }
  }
  throw verdict(session, o.what, failures);
}

type Asked = { candidates: Candidate[]; last: Candidate; failures: Map<number, TransferError> };

/** Who may be asked after `last` has failed. What counts no more goes from the failures, too. */
function remaining({ endpoints, ...session }: Session, asked: Asked): Candidate[] {
  const { last, failures } = asked;
  const { isOrigin, url } = endpoints[last.index]!;
  const error = failures.get(last.index)!;
  let candidates = asked.candidates;
  if (!error.mayRetry || last.tries >= session.roundsMax) {
    candidates = candidates.filter((one) => one !== last);
  }
  // The other scheme is for where this one brings no registry.
  if (session.spoke[last.index] || error.isUntrusted) {
    const isOther = (one: Candidate) => isOtherScheme(endpoints[one.index]!.url, url);
    candidates = candidates.filter((one) => !isOther(one));
  }
  if (error.mayRetry || !isOrigin) return candidates;
  // The registry's own word: mirrors before it cannot say more, those after it may.
  for (const [index, { mayRetry }] of failures) {
    const isWord = endpoints[index]!.isOrigin && !mayRetry;
    if (index < last.index && !isWord) failures.delete(index);
  }
  return candidates.filter(({ index }) => index > last.index);
}

function isOtherScheme(a: string, b: string): boolean {
  return a !== b && a.replace(/^https?:/, "") === b.replace(/^https?:/, "");
}

/** One error for all failures, with the code of the one that says most about the image. */
function verdict(session: Session, what: string, failures: Map<number, TransferError>): CriError {
  const weight = ([index, { mayRetry }]: [number, TransferError]) => {
    if (!session.endpoints[index]!.isOrigin) return 0;
    return session.spoke[index] ? 2 : Number(!mayRetry);
  };
  const all = [...failures];
  const cause = all.toSorted((a, b) => weight(a) - weight(b)).at(-1)?.[1];
  if (cause === undefined) {
    const message = `cannot get ${what}: hosts.toml names nobody to ask`;
    return new CriError("FAILED_PRECONDITION", message);
  }
  const messages = [...new Set(all.map(([, error]) => messageOf(error)))].join("; ");
  return new CriError(cause.code, `cannot get ${what}: ${messages}`, { cause });
}

async function pause(ms: number, what: string, signal: AbortSignal): Promise<void> {
  if (ms <= 0) return;
  const seconds = Math.round(ms / 1000);
  try {
    await sleep(ms, undefined, { signal });
  } catch {
    throw abortError(`waiting ${seconds} s to ask again for ${what}`, signal);
  }
}
