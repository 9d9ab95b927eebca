// Issues the tokens in the URLs of Exec, Attach and PortForward: each is valid for one use within a minute. Nobody is
// refused one: when there are too many, the pod that has most loses its oldest.
import { randomBytes } from "node:crypto";
import { Shares } from "../base/shares.ts";

const lifeMs = 60_000;
/** Tokens that are not used yet; the limit of kubelet's cache. */
const tokensMax = 1000;

export class Tokens<Value extends { pod: string }> {
  /** Oldest first. */
  readonly #values = new Map<string, { value: Value; until: number }>();
  readonly #shares = new Shares<string>();
  readonly #now: () => number;

  /** now: milliseconds of a monotonic clock. */
  constructor(now = () => performance.now()) {
    this.#now = now;
  }

  put(value: Value): string {
    this.#dropExpired();
    const most = this.#shares.size < tokensMax ? undefined : this.#shares.most();
    for (const oldest of most?.items ?? []) {
      this.#drop(oldest);
      break;
    }
    const token = randomBytes(16).toString("base64url");
    this.#values.set(token, { value, until: this.#now() + lifeMs });
    this.#shares.add(value.pod, token);
    return token;
  }

  /** Returns the token's value, and leaves it valid; undefined if it was used, dropped, has expired or is unknown. */
  find(token: string): Value | undefined {
    this.#dropExpired();
    return this.#values.get(token)?.value;
  }

  /** Like find(), for the token's one use. */
  take(token: string): Value | undefined {
    const found = this.find(token);
    this.#drop(token);
    return found;
  }

  #drop(token: string): void {
    const found = this.#values.get(token);
    if (found === undefined) return;
    this.#values.delete(token);
    this.#shares.remove(found.value.pod, token);
  }

  #dropExpired(): void {
    for (const [token, { until }] of this.#values) {
      if (until > this.#now()) return;
      this.#drop(token);
    }
  }
}
