// The secrets in the URLs that Exec, Attach and PortForward answer: each good for one use and a minute.
import { randomBytes } from "node:crypto";
import { CriError } from "../base/errors.ts";

const lifeMs = 60_000;
/** As many as kubelet's own cache keeps. */
const tokensMax = 1000;

export class Tokens<Value> {
  /** The oldest first. */
  readonly #values = new Map<string, { value: Value; until: number }>();
  readonly #now: () => number;

  /** now: milliseconds of a clock that never goes back. */
  constructor(now = () => performance.now()) {
    this.#now = now;
  }

  /** @throws CriError RESOURCE_EXHAUSTED while too many wait to be used. */
  put(value: Value): string {
    this.#forgetOld();
    if (this.#values.size >= tokensMax) {
      throw new CriError(
        "RESOURCE_EXHAUSTED",
        `${tokensMax} streams wait for their clients: try again in a minute`,
      );
    }
    const token = randomBytes(16).toString("base64url");
    this.#values.set(token, { value, until: this.#now() + lifeMs });
    return token;
  }

  /** What it stands for, once; undefined: it was used, is too old, or never was. */
  take(token: string): Value | undefined {
    this.#forgetOld();
    const found = this.#values.get(token);
    this.#values.delete(token);
    return found?.value;
  }

  #forgetOld(): void {
    for (const [token, { until }] of this.#values) {
      if (until > this.#now()) return;
      this.#values.delete(token);
    }
  }
}
