// Issues the tokens in the URLs of Exec, Attach and PortForward: each is valid for one use within a minute.
import { randomBytes } from "node:crypto";
import { CriError } from "../base/errors.ts";

const lifeMs = 60_000;
/** Tokens that are not used yet; the limit of kubelet's cache. */
const tokensMax = 1000;

export class Tokens<Value> {
  /** Oldest first. */
  readonly #values = new Map<string, { value: Value; until: number }>();
  readonly #now: () => number;

  /** now: milliseconds of a monotonic clock. */
  constructor(now = () => performance.now()) {
    this.#now = now;
  }

  /** @throws CriError RESOURCE_EXHAUSTED if too many are unused. */
  put(value: Value): string {
    this.#dropExpired();
    if (this.#values.size >= tokensMax) {
      throw new CriError(
        "RESOURCE_EXHAUSTED",
        `${tokensMax} streams wait for their clients: retry in a minute`,
      );
    }
    const token = randomBytes(16).toString("base64url");
    this.#values.set(token, { value, until: this.#now() + lifeMs });
    return token;
  }

  /** Returns the token's value once; undefined if it was used, has expired or is unknown. */
  take(token: string): Value | undefined {
    this.#dropExpired();
    const found = this.#values.get(token);
    this.#values.delete(token);
    return found?.value;
  }

  #dropExpired(): void {
    for (const [token, { until }] of this.#values) {
      if (until > this.#now()) return;
      this.#values.delete(token);
    }
  }
}
