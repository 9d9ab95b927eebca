// Sends one HTTP request: follows redirects, ends it when the server falls silent, bounds what it reads.
import { URL } from "node:url";
import { throwIfAborted } from "../base/abort.ts";
import { CriError, type ErrorCode } from "../base/errors.ts";
import { BoundsError, type JsonBounds, JsonScan } from "../base/json_bounds.ts";
import { clip } from "../base/text.ts";
import { failureOf, send } from "./connection.ts";
import { isSameHost, type Tls } from "./endpoint.ts";

/** A failure of one upstream; a retry or another upstream may succeed. */
export class TransferError extends CriError {
  readonly mayRetry: boolean;
  readonly retryAfterMs: number;
  /** The certificate is not trusted: no fallback to plain HTTP. */
  readonly isUntrusted: boolean;
  /** Of the response; undefined: there was none, or it was no refusal. */
  readonly status: number | undefined;

  constructor(code: ErrorCode, message: string, o: TransferErrorOptions = {}) {
    super(code, message, { cause: o.cause });
    this.mayRetry = o.mayRetry ?? false;
    this.retryAfterMs = o.retryAfterMs ?? 0;
    this.isUntrusted = o.isUntrusted ?? false;
    this.status = o.status;
  }
}

type TransferErrorOptions = ErrorOptions &
  Partial<Pick<TransferError, "mayRetry" | "retryAfterMs" | "isUntrusted" | "status">>;

/** What a host gets besides the headers of the request. */
export type Access = { headers: Record<string, string>; tls: Tls };

export type HttpRequest = {
  url: string;
  method?: "GET" | "HEAD" | "POST" | undefined;
  /** Sent to every host: none identifies the client. */
  headers: Record<string, string>;
  /** Asked for each URL of a chain of redirects. isOwn: as in HttpResponse. */
  accessAt: (url: URL, isOwn: boolean) => Access;
  /** Not sent to another host. */
  body?: string;
  /** The content is verified by its digest: redirects from https to http are followed. */
  isVerified?: boolean;
  /** The longest wait for the next byte, and for `leastBytes()`. */
  timeoutMs: number;
  /** From answerEnd(): the headers must have arrived by then, and all of what readAll() reads. */
  endsAtMs: number;
  signal: AbortSignal;
};

export type HttpResponse = {
  /** The one that answered, after redirects. */
  url: URL;
  /** Its host, for messages. */
  host: string;
  /** False after a redirect to another host, also if that one has redirected back to the first. */
  isOwn: boolean;
  status: number;
  headers: Headers;
  /** As in the request. */
  endsAtMs: number;
  /** Must be iterated, even in part, or given to discard(): either frees the connection. */
  body: AsyncGenerator<Uint8Array, void, undefined>;
};

/**
 * Redirects, tokens and a manifest together may take so many timeouts: a registry that sends each part in time could
 * occupy a pull for hours, and a kubelet by default pulls one image after another.
 */
const timeoutsMax = 10;

/** Returns the end, by performance.now(), of requests for one small document that begin now. */
export function answerEnd(timeoutMs: number): number {
  return performance.now() + timeoutsMax * timeoutMs;
}

/** A radio link of 9.6 kbit/s with sixteen transfers gives each of them more. */
const leastBytesPerSecond = 64;

/** How much must arrive in a time, or the server counts as silent: one that sends a byte a minute never ends. */
export function leastBytes(ms: number): number {
  return Math.ceil((ms / 1000) * leastBytesPerSecond);
}

const redirectsMax = 10;
const commonHeaders = { "user-agent": "isulad-ts", "accept-encoding": "identity" };

/**
 * Returns the response, whatever its status.
 * @throws TransferError without a response; CriError CANCELLED or DEADLINE_EXCEEDED.
 */
export async function httpRequest(request: HttpRequest): Promise<HttpResponse> {
  const first = new URL(request.url);
  let url = first;
  let isOwn = true;
  for (let redirects = 0; redirects <= redirectsMax; redirects++) {
    isOwn &&= isSameHost(first, url);
    const { headers, tls } = request.accessAt(url, isOwn);
    const from = url.host === first.host ? "" : ` (redirected from ${hostOf(first)})`;
    const host = hostOf(url) + from;
    const watchdog = new Watchdog(request, host);
    const init: RequestInit = {
      method: request.method ?? "GET",
      headers: { ...commonHeaders, ...headers, ...request.headers },
      body: request.body,
      redirect: "manual",
      signal: watchdog.signal,
    };
    const response = await watchdog.headers(() => send(url.href, init, tls));
    const { status } = response;
    const location = response.headers.get("location");
    if (![301, 302, 303, 307, 308].includes(status) || location === null) {
      const body = bodyOf(response, watchdog);
      const { endsAtMs } = request;
      return { url, host, isOwn, status, headers: response.headers, endsAtMs, body };
    }
    // A connection that breaks while a redirect's body is dropped does not matter.
    await response.body?.cancel().catch(() => {});
    const next = redirected(url, location, request.isVerified || tls.skipVerify);
    if (request.body !== undefined && !isSameHost(first, next)) {
      const message = `${host} redirects credentials to ${hostOf(next)}: refused`;
      throw new TransferError("UNAVAILABLE", message);
    }
    url = next;
  }
  const message = `${hostOf(first)} redirects more than ${redirectsMax} times`;
  throw new TransferError("UNAVAILABLE", message);
}

function redirected(from: URL, location: string, mayBePlain: boolean): URL {
  if (!URL.canParse(location, from.href)) {
    throw new TransferError("UNAVAILABLE", `${hostOf(from)} redirects to no valid address`);
  }
  const next = new URL(location, from);
  const isSafe = next.protocol === "https:" || next.protocol === from.protocol;
  if (!/^https?:$/.test(next.protocol) || (!isSafe && !mayBePlain)) {
    const [kind, nextKind] = [from.protocol, next.protocol].map((one) => one.slice(0, -1));
    const message = `${hostOf(from)} redirects from ${kind} to ${nextKind} (${hostOf(next)}): refused`;
    throw new TransferError("UNAVAILABLE", message);
  }
  return next;
}

async function* bodyOf(response: Response, watchdog: Watchdog): HttpResponse["body"] {
  const reader = response.body?.getReader();
  if (reader === undefined) return;
  try {
    for (;;) {
      const chunk = await watchdog.chunk(reader);
      if (chunk === undefined) return;
      yield chunk;
    }
  } finally {
    watchdog.abort();
    await reader.cancel().catch(() => {});
  }
}

/** Ends a request whose server sends nothing, or too little, for too long. */
class Watchdog {
  readonly #request: HttpRequest;
  readonly #host: string;
  readonly #own = new AbortController();
  readonly signal: AbortSignal;
  #timedOut = false;
  /** Of the current period: the time spent waiting for the server, and what has arrived. */
  #waitedMs = 0;
  #bytes = 0;

  constructor(request: HttpRequest, host: string) {
    this.#request = request;
    this.#host = host;
    this.signal = AbortSignal.any([request.signal, this.#own.signal]);
  }

  abort(): void {
    this.#own.abort();
  }

  /** Waits for the headers, until the end of the request at the latest. */
  async headers(wait: () => Promise<Response>): Promise<Response> {
    const { timeoutMs, endsAtMs } = this.#request;
    const leftMs = endsAtMs - performance.now();
    const late = lateAnswer(this.#host);
    if (leftMs <= 0) throw late;
    if (leftMs < timeoutMs) return await this.#watch(wait, leftMs, late);
    return await this.#watch(wait, timeoutMs);
  }

  /** Returns the next part of the body; undefined at its end. */
  async chunk(reader: Pick<ReadableStreamDefaultReader<Uint8Array>, "read">) {
    const { timeoutMs } = this.#request;
    const startMs = performance.now();
    // Counts only the time of the read: a slow consumer is not the registry's silence.
    const { done, value } = await this.#watch(() => reader.read(), timeoutMs);
    if (done) return undefined;
    this.#waitedMs += performance.now() - startMs;
    this.#bytes += value.length;
    if (this.#waitedMs < timeoutMs) return value;
    const least = leastBytes(this.#waitedMs);
    if (this.#bytes < least) {
      const waited = `${Math.round(this.#waitedMs)} ms`;
      const message = `${this.#host} sent only ${this.#bytes} bytes in ${waited}, fewer than ${least}`;
      throw new TransferError("DEADLINE_EXCEEDED", message);
    }
    this.#waitedMs = 0;
    this.#bytes = 0;
    return value;
  }

  /** atTimeout: the error of a wait that has lasted so long. */
  async #watch<T>(wait: () => Promise<T>, timeoutMs: number, atTimeout?: CriError): Promise<T> {
    throwIfAborted(`request to ${this.#host}`, this.#request.signal);
    const timer = setTimeout(() => {
      this.#timedOut = true;
      this.#own.abort();
    }, timeoutMs);
    try {
      return await wait();
    } catch (error) {
      throw (this.#timedOut && atTimeout) || this.#explain(error);
    } finally {
      clearTimeout(timer);
    }
  }

  #explain(cause: unknown): CriError {
    throwIfAborted(`request to ${this.#host}`, this.#request.signal);
    if (this.#timedOut) {
      const message = `${this.#host} sent nothing for ${this.#request.timeoutMs} ms`;
      return new TransferError("DEADLINE_EXCEEDED", message, { cause });
    }
    if (cause instanceof CriError) return cause;
    const { reason, isFinal, isUntrusted } = failureOf(cause);
    const message = `${this.#host}: ${reason}`;
    return new TransferError("UNAVAILABLE", message, { cause, mayRetry: !isFinal, isUntrusted });
  }
}

/** Drops a body. Starts it first: a generator that never ran does not run its finally block. */
export async function discard({ body }: Pick<HttpResponse, "body">): Promise<void> {
  await body.next().catch(() => {});
  await body.return();
}

/** How much of an address a message shows; a host name has up to 253. */
const hostBytesMax = 300;

export function hostOf(url: string | URL): string {
  return clip(new URL(url).host, hostBytesMax);
}

function lateAnswer(host: string): TransferError {
  const message = `${host} took longer than ${timeoutsMax} times pull-progress-timeout`;
  return new TransferError("DEADLINE_EXCEEDED", message);
}

/** What may be read; json: the body is a JSON document, and refused at the first byte that exceeds these bounds. */
export type BodyLimits = { bytesMax: number; what: string; json?: JsonBounds };

/**
 * Reads the whole body.
 * @throws TransferError RESOURCE_EXHAUSTED when it is longer than bytesMax, INVALID_ARGUMENT for a document over its
 * bounds, DEADLINE_EXCEEDED when it takes too long.
 */
export async function readAll(
  { body, host, headers, endsAtMs }: Pick<HttpResponse, "body" | "host" | "headers" | "endsAtMs">,
  { bytesMax, what, json }: BodyLimits,
): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  const scan = json && new JsonScan(json);
  let length = Number(headers.get("content-length") ?? 0) > bytesMax ? bytesMax : 0;
  for await (const chunk of body) {
    length += chunk.length;
    if (performance.now() > endsAtMs) throw lateAnswer(host);
    if (length > bytesMax) {
      throw new TransferError("RESOURCE_EXHAUSTED", `${what} is longer than ${bytesMax} bytes`);
    }
    chunks.push(chunk);
    if (scan !== undefined) refuseAtBounds(scan, chunk, what);
  }
  return Buffer.concat(chunks);
}

function refuseAtBounds(scan: JsonScan, chunk: Uint8Array, what: string): void {
  try {
    scan.push(Buffer.from(chunk.buffer, chunk.byteOffset, chunk.length));
  } catch (cause) {
    if (!(cause instanceof BoundsError)) throw cause;
    throw new TransferError("INVALID_ARGUMENT", `${what} ${cause.message}`, { cause });
  }
}
