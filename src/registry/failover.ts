// Decides the retries of a pull: the next upstream and delay of a request, the reconnections of a transfer.
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import { withoutScheme } from "./endpoint.ts";
import { hostOf, type TransferError } from "./http_request.ts";
import type { PullSession, Upstream } from "./pull_session.ts";

/** An upstream that may still be tried. */
type Candidate = { upstream: Upstream; tries: number; readyAtMs: number };

type Attempt = {
  upstream: Upstream;
  delayMs: number;
  /** Why its last attempt failed; "" before the first. */
  failure: string;
};

export type FailoverOptions = {
  /** The capability that the request needs. */
  needs: "canPull" | "canResolve";
  /** Upstreams that have begun to send the content: the registry's refusal does not overrule them. */
  having?: ReadonlySet<Upstream>;
  /** Milliseconds of a monotonic clock. */
  nowMs?: () => number;
};

/** The attempts of one request, over all upstreams of a session. */
export class Failover {
  readonly #session: PullSession;
  readonly #nowMs: () => number;
  readonly #having: ReadonlySet<Upstream>;
  readonly #failures = new Map<Upstream, TransferError>();
  #candidates: Candidate[];

  constructor(
    session: PullSession,
    { needs, having = new Set(), nowMs = () => performance.now() }: FailoverOptions,
  ) {
    this.#session = session;
    this.#having = having;
    this.#nowMs = nowMs;
    this.#candidates = withoutOtherSchemes(session.upstreams)
      .filter((upstream) => upstream[needs])
      .toSorted((a, b) => Number(a.isFailing) - Number(b.isFailing))
      .map((upstream) => ({ upstream, tries: 0, readyAtMs: 0 }));
  }

  /** Returns the upstream that is ready first, the preferred one of several; undefined: none is left. */
  next(): Attempt | undefined {
    if (this.#candidates.length === 0) return undefined;
    const { upstream, readyAtMs } = this.#candidates.reduce((a, b) =>
      b.readyAtMs < a.readyAtMs ? b : a,
    );
    const failure = this.#failures.get(upstream)?.message ?? "";
    return { upstream, delayMs: Math.max(0, readyAtMs - this.#nowMs()), failure };
  }

  succeeded(upstream: Upstream): void {
    upstream.isFailing = false;
    upstream.isRegistry = true;
    this.#session.servedBy = hostOf(upstream.url);
  }

  failed(upstream: Upstream, error: TransferError): void {
    this.#failures.set(upstream, error);
    upstream.isFailing = error.mayRetry || error.code === "DEADLINE_EXCEEDED";
    const candidate = this.#candidates.find((one) => one.upstream === upstream)!;
    const backoffMs = this.#session.firstBackoffMs * 2 ** candidate.tries++;
    candidate.readyAtMs = this.#nowMs() + Math.max(backoffMs, error.retryAfterMs);
    if (!error.mayRetry || candidate.tries >= this.#session.triesMax) {
      this.#keepOnly((one) => one !== upstream);
    }
    if (upstream.isRegistry || error.isUntrusted) {
      this.#keepOnly(({ url }) => !isOtherScheme(url, upstream.url));
    }
    if (upstream.isOrigin && !error.mayRetry) this.#registryRefused(upstream);
  }

  /** The registry's final response overrules the mirrors before it; those after it may still serve. */
  #registryRefused(origin: Upstream): void {
    const { upstreams } = this.#session;
    const isLater = (other: Upstream) => upstreams.indexOf(other) > upstreams.indexOf(origin);
    for (const [other, { mayRetry }] of this.#failures) {
      const isFinal = other.isOrigin && !mayRetry;
      if (other !== origin && !isLater(other) && !isFinal) this.#failures.delete(other);
    }
    this.#keepOnly((one) => isLater(one) || this.#having.has(one));
  }

  #keepOnly(isKept: (upstream: Upstream) => boolean): void {
    this.#candidates = this.#candidates.filter(({ upstream }) => isKept(upstream));
  }

  /** Returns one error for all failures, with the code of the most authoritative. */
  error(what: string): CriError {
    const failures = [...this.#failures].toSorted(([a, x], [b, y]) => weight(a, x) - weight(b, y));
    const cause = failures.at(-1)?.[1];
    if (cause === undefined) {
      const message = `cannot get ${what}: no host in hosts.toml has the capability for it`;
      return new CriError("FAILED_PRECONDITION", message);
    }
    const messages = new Set([...this.#failures.values()].map(messageOf));
    return new CriError(cause.code, `cannot get ${what}: ${[...messages].join("; ")}`, { cause });
  }
}

/**
 * Drops the upstreams that have the address of a known registry, but the other scheme: plain HTTP is a fallback for an
 * address where no registry speaks TLS, not for one where a registry does.
 */
export function withoutOtherSchemes(upstreams: Upstream[]): Upstream[] {
  const known = upstreams.filter(({ isRegistry }) => isRegistry);
  return upstreams.filter(({ url }) => !known.some((one) => isOtherScheme(one.url, url)));
}

function isOtherScheme(a: string, b: string): boolean {
  return a !== b && withoutScheme(a) === withoutScheme(b);
}

function weight({ isOrigin, isRegistry }: Upstream, { mayRetry }: TransferError): number {
  if (!isOrigin) return 0;
  return isRegistry ? 2 : Number(!mayRetry);
}

/** Consecutive connections without a byte, and connections in all, before a transfer fails. */
const emptyConnectionsMax = 4;
const connectionsMax = 101;

/** The reconnections of one transfer. */
export class Reconnection {
  readonly #firstBackoffMs: number;
  #empty = 0;
  #broken = 0;

  constructor(firstBackoffMs: number) {
    this.#firstBackoffMs = firstBackoffMs;
  }

  /**
   * Returns the delay in ms before the next connection. hasOther: an upstream that is not failing will take over.
   * @throws the error if there must be no further connection.
   */
  afterBreak(
    receivedBytes: number,
    error: TransferError,
    { hasOther }: { hasOther: boolean },
  ): number {
    this.#broken++;
    if (hasOther && this.#broken < connectionsMax) {
      this.#empty = 0;
      return 0;
    }
    this.#empty = receivedBytes > 0 ? 0 : this.#empty + 1;
    // Silence has already cost progressTimeoutMs.
    const isSilent = this.#empty > 0 && codeOf(error) === "DEADLINE_EXCEEDED";
    if (isSilent || this.#empty >= emptyConnectionsMax || this.#broken >= connectionsMax) {
      throw error;
    }
    return this.#firstBackoffMs * 2 ** this.#empty;
  }
}

/** Returns the session limited to the registry itself, if it may be asked for blobs, else the session. */
export function registryItself(session: PullSession): PullSession {
  const upstreams = session.upstreams.filter(({ isOrigin, canPull }) => isOrigin && canPull);
  return upstreams.length === 0 ? session : { ...session, upstreams };
}

/** Returns the session limited to the registry itself, or undefined if it has no mirrors. */
export function withoutMirrors(session: PullSession): PullSession | undefined {
  const upstreams = session.upstreams.filter(({ isOrigin }) => isOrigin);
  return upstreams.length === session.upstreams.length ? undefined : { ...session, upstreams };
}
