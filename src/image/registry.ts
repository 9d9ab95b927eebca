// The pulling side of the OCI distribution protocol: manifests and blobs, from the first endpoint
// that has them, with retries, resumption and the registry's own way of asking who we are.
import { setTimeout as sleep } from "node:timers/promises";
import { abortError, throwIfAborted } from "../base/abort.ts";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import { ask, assertNoWebPage } from "./ask.ts";
import { digestOf, manifestBytesMax, manifestTypes } from "./manifest.ts";
import { withEndpoints, type Session } from "./session.ts";
import { discard, hostOf, readAll, TransferError, type Transfer } from "./transfer.ts";

export type { Session } from "./session.ts";

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
    await discard(answer);
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
  const { endpoints, unwell } = session;
  // With another client certificate it may say something else.
  const isSame = (a: number, b: number) => endpoints[a]!.url === endpoints[b]!.url;
  const failures = new Map<number, TransferError>();
  let candidates = endpoints.map((_, index) => index);
  candidates = candidates.filter((index) => endpoints[index]![isTag ? "canResolve" : "canPull"]);
  candidates.sort((a, b) => Number(unwell[a]) - Number(unwell[b]));
  for (let round = 0; candidates.length > 0; round++) {
    let waitMs = firstBackoffMs * 2 ** round;
    for (const index of candidates) {
      try {
        const result = await attempt(index);
        unwell[index] = false;
        session.answered = index;
        return result;
      } catch (error) {
        throwIfAborted(what, signal);
        if (!(error instanceof TransferError)) throw error;
        failures.set(index, error);
        unwell[index] = error.mayRetry || error.code === "DEADLINE_EXCEEDED";
        waitMs = Math.max(waitMs, error.retryAfterMs);
        // The registry's own word ends it; a mirror's does not.
        const isLast = !candidates.some((other) => !failures.has(other) && isSame(other, index));
        if (!error.mayRetry && endpoints[index]!.isOrigin && isLast) throw refused(what, error);
      }
    }
    candidates = candidates.filter((index) => failures.get(index)?.mayRetry);
    if (round + 1 >= session.roundsMax) break;
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
