// One HTTP request to a registry: redirects, silence and bounds are dealt with here.
import { URL } from "node:url";
import { throwIfAborted } from "../base/abort.ts";
import { CriError, type ErrorCode } from "../base/errors.ts";
import { clip } from "../base/text.ts";
import { failureOf, send } from "./connection.ts";
import type { Tls } from "./endpoint.ts";

/** Something that one endpoint did; another try or another endpoint may do better. */
export class TransferError extends CriError {
  readonly mayRetry: boolean;
  readonly retryAfterMs: number;
  /** Its certificate is not trusted: nobody may answer in its place. */
  readonly isUntrusted: boolean;

  constructor(code: ErrorCode, message: string, o: TransferErrorOptions = {}) {
    super(code, message, { cause: o.cause });
    this.mayRetry = o.mayRetry ?? false;
    this.retryAfterMs = o.retryAfterMs ?? 0;
    this.isUntrusted = o.isUntrusted ?? false;
  }
}

type TransferErrorOptions = {
  mayRetry?: boolean;
  retryAfterMs?: number;
  isUntrusted?: boolean;
  cause?: unknown;
};

export type TransferRequest = {
  url: string;
  method?: "GET" | "POST";
  headers: Record<string, string>;
  body?: string;
  tls: Tls;
  /** How long no byte may come. */
  timeoutMs: number;
  signal: AbortSignal;
};

export type Transfer = {
  status: number;
  headers: Headers;
  /** To be read, to its end or not, or given to discard(): that frees the connection. */
  body: AsyncGenerator<Uint8Array, void, undefined>;
};

const redirectsMax = 10;
/**
 * Sends a request and follows redirects; any status that is no redirect is a result.
 * @throws TransferError when there is no answer; CriError CANCELLED or DEADLINE_EXCEEDED.
 */
export async function transfer(request: TransferRequest): Promise<Transfer> {
  let { url, headers, tls } = request;
  for (let redirects = 0; redirects <= redirectsMax; redirects++) {
    const silence = new Silence(request, url);
    const init: RequestInit = {
      method: request.method ?? "GET",
      headers: { "user-agent": "isulad-ts", "accept-encoding": "identity", ...headers },
      body: request.body,
      redirect: "manual",
      signal: silence.signal,
    };
    const response = await silence.watch(() => send(url, init, tls));
    const location = response.headers.get("location");
    if (![301, 302, 303, 307, 308].includes(response.status) || location === null) {
      return {
        status: response.status,
        headers: response.headers,
        body: bodyOf(response, silence),
      };
    }
    // Nobody needs this body: a connection that breaks meanwhile fails no request.
    await response.body?.cancel().catch(() => {});
    const next = redirected(url, location, tls);
    if (next.origin !== new URL(url).origin) {
      if (request.body !== undefined) {
        const message = `${hostOf(url)} sends what it asked for on to ${clip(next.host, hostBytesMax)}: refused`;
        throw new TransferError("UNAVAILABLE", message);
      }
      headers = publicHeaders(headers);
      tls = { ...tls, cert: undefined, key: undefined };
    }
    url = next.href;
  }
  throw new TransferError("UNAVAILABLE", `${hostOf(request.url)} redirects without an end`);
}

/** How much of an address a message shows; a host's name has up to 253. */
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

/** What a redirect to another host keeps: what was asked, never who asked. */
function publicHeaders(headers: Record<string, string>): Record<string, string> {
  const isPublic = ([name]: [string, string]) => ["accept", "range"].includes(name.toLowerCase());
  return Object.fromEntries(Object.entries(headers).filter(isPublic));
}

async function* bodyOf(response: Response, silence: Silence): Transfer["body"] {
  const reader = response.body?.getReader();
  if (reader === undefined) return;
  try {
    for (;;) {
      // Only while we wait: a slow disk of ours is not the registry's silence.
      const { done, value } = await silence.watch(() => reader.read());
      if (done) return;
      yield value;
    }
  } finally {
    silence.abort();
    await reader.cancel().catch(() => {});
  }
}

/** Ends a request whose other side says nothing for too long. */
class Silence {
  readonly #request: TransferRequest;
  readonly #host: string;
  readonly #own = new AbortController();
  readonly signal: AbortSignal;
  #timedOut = false;

  constructor(request: TransferRequest, url: string) {
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

/** For an answer that nobody reads. A generator that never began cannot clean up behind itself. */
export async function discard({ body }: Pick<Transfer, "body">): Promise<void> {
  await body.next().catch(() => {});
  await body.return();
}

export function hostOf(url: string): string {
  return new URL(url).host;
}

/** The whole body. @throws TransferError RESOURCE_EXHAUSTED when it is longer than bytesMax. */
export async function readAll(from: Transfer, bytesMax: number, what: string): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of from.body) {
    length += chunk.length;
    if (length > bytesMax) {
      throw new TransferError("RESOURCE_EXHAUSTED", `${what} is longer than ${bytesMax} bytes`);
    }
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}
