// Sends one HTTP request: follows redirects, ends it when the server falls silent, bounds what it reads.
import { URL } from "node:url";
import { throwIfAborted } from "../base/abort.ts";
import { CriError, type ErrorCode } from "../base/errors.ts";
import { clip } from "../base/text.ts";
import { failureOf, send } from "./connection.ts";
import type { Tls } from "./endpoint.ts";

/** A failure of one upstream; a retry or another upstream may succeed. */
export class TransferError extends CriError {
  readonly mayRetry: boolean;
  readonly retryAfterMs: number;
  /** The certificate is not trusted: no fallback to plain HTTP. */
  readonly isUntrusted: boolean;

  constructor(code: ErrorCode, message: string, o: TransferErrorOptions = {}) {
    super(code, message, { cause: o.cause });
    this.mayRetry = o.mayRetry ?? false;
    this.retryAfterMs = o.retryAfterMs ?? 0;
    this.isUntrusted = o.isUntrusted ?? false;
  }
}

type TransferErrorOptions = ErrorOptions &
  Partial<Pick<TransferError, "mayRetry" | "retryAfterMs" | "isUntrusted">>;

type HttpRequest = {
  url: string;
  method?: "GET" | "HEAD" | "POST" | undefined;
  headers: Record<string, string>;
  body?: string;
  tls: Tls;
  /** The longest wait for the next byte. */
  timeoutMs: number;
  signal: AbortSignal;
};

export type HttpResponse = {
  status: number;
  headers: Headers;
  /** Must be iterated, even in part, or given to discard(): either frees the connection. */
  body: AsyncGenerator<Uint8Array, void, undefined>;
};

const redirectsMax = 10;

/**
 * Returns the response, whatever its status.
 * @throws TransferError without a response; CriError CANCELLED or DEADLINE_EXCEEDED.
 */
export async function httpRequest(request: HttpRequest): Promise<HttpResponse> {
  let { url, headers, tls } = request;
  for (let redirects = 0; redirects <= redirectsMax; redirects++) {
    const watchdog = new Watchdog(request, url);
    const init: RequestInit = {
      method: request.method ?? "GET",
      headers: { "user-agent": "isulad-ts", "accept-encoding": "identity", ...headers },
      body: request.body,
      redirect: "manual",
      signal: watchdog.signal,
    };
    const response = await watchdog.watch(() => send(url, init, tls));
    const { status } = response;
    const location = response.headers.get("location");
    if (![301, 302, 303, 307, 308].includes(status) || location === null) {
      return { status, headers: response.headers, body: bodyOf(response, watchdog) };
    }
    // A connection that breaks while a redirect's body is dropped does not matter.
    await response.body?.cancel().catch(() => {});
    const next = redirected(url, location, tls);
    if (next.origin !== new URL(url).origin) {
      if (request.body !== undefined) {
        const message = `${hostOf(url)} redirects credentials to ${clip(next.host, hostBytesMax)}: refused`;
        throw new TransferError("UNAVAILABLE", message);
      }
      headers = publicHeaders(headers);
      tls = { ...tls, cert: undefined, key: undefined };
    }
    url = next.href;
  }
  const message = `${hostOf(request.url)} redirects more than ${redirectsMax} times`;
  throw new TransferError("UNAVAILABLE", message);
}

/** How much of an address a message shows; a host name has up to 253. */
const hostBytesMax = 300;

function redirected(from: string, location: string, tls: Tls): URL {
  if (!URL.canParse(location, from)) {
    throw new TransferError("UNAVAILABLE", `${hostOf(from)} redirects to no valid address`);
  }
  const next = new URL(location, from);
  const isSafe = next.protocol === "https:" || next.protocol === new URL(from).protocol;
  if (!/^https?:$/.test(next.protocol) || (!isSafe && !tls.skipVerify)) {
    const [kind, nextKind] = [new URL(from).protocol, next.protocol].map((one) => one.slice(0, -1));
    const host = clip(next.host, hostBytesMax);
    const message = `${hostOf(from)} redirects from ${kind} to ${nextKind} (${host}): refused`;
    throw new TransferError("UNAVAILABLE", message);
  }
  return next;
}

/** The headers kept on a redirect to another host: none that identifies the client. */
function publicHeaders(headers: Record<string, string>): Record<string, string> {
  const isPublic = ([name]: [string, string]) => ["accept", "range"].includes(name.toLowerCase());
  return Object.fromEntries(Object.entries(headers).filter(isPublic));
}

async function* bodyOf(response: Response, watchdog: Watchdog): HttpResponse["body"] {
  const reader = response.body?.getReader();
  if (reader === undefined) return;
  try {
    for (;;) {
      // Runs only during the read: a slow consumer is not the registry's silence.
      const { done, value } = await watchdog.watch(() => reader.read());
      if (done) return;
      yield value;
    }
  } finally {
    watchdog.abort();
    await reader.cancel().catch(() => {});
  }
}

/** Ends a request whose server sends nothing for too long. */
class Watchdog {
  readonly #request: HttpRequest;
  readonly #host: string;
  readonly #own = new AbortController();
  readonly signal: AbortSignal;
  #timedOut = false;

  constructor(request: HttpRequest, url: string) {
    this.#request = request;
    this.#host = hostOf(url);
    this.signal = AbortSignal.any([request.signal, this.#own.signal]);
  }

  abort(): void {
    this.#own.abort();
  }

  async watch<T>(wait: () => Promise<T>): Promise<T> {
    throwIfAborted(`request to ${this.#host}`, this.#request.signal);
    const timer = setTimeout(() => {
      this.#timedOut = true;
      this.#own.abort();
    }, this.#request.timeoutMs);
    try {
      return await wait();
    } catch (error) {
      throw this.#explain(error);
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

export function hostOf(url: string): string {
  return new URL(url).host;
}

/** Reads the whole body. @throws TransferError RESOURCE_EXHAUSTED when it is longer than bytesMax. */
export async function readAll(
  { body }: Pick<HttpResponse, "body">,
  bytesMax: number,
  what: string,
): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of body) {
    length += chunk.length;
    if (length > bytesMax) {
      throw new TransferError("RESOURCE_EXHAUSTED", `${what} is longer than ${bytesMax} bytes`);
    }
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}
