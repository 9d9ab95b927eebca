// Decides when a log that could not be written is tried again.
//
// Decision: the pause between two tries grows from 20 ms to 1 s, whatever the thread's other logs do. Logs whose file
// system fails (it is full, read-only, or its disk is broken) share one pause and one try, which the logs make in turn:
// 60 containers on a full disk cost as much as one. When a try succeeds, all of them are tried. A failure of one file
// (immutable, over its folder's quota, no folder) has a pause of its own.
import { Backoff } from "../base/backoff.ts";

/** Errors of a file system; all others may be of one file. */
const shared: ReadonlySet<string> = new Set(["ENOSPC", "EROFS", "EIO"]);
const sharedKey = "";
const pauses = { firstMs: 20, maxMs: 1_000 };
/**
 * The pause is short again only after this long without a try: a disk that takes a line now and then would be tried 50
 * times a second.
 */
const quietMs = 2 * pauses.maxMs;

/** isReleased: another log of the file system could be written. */
type Failing = { key: string; isReleased: boolean };

export class LogRetries {
  readonly #backoff = new Backoff(pauses);
  /** By the log's id, in the order of their last tries. */
  readonly #failing = new Map<string, Failing>();
  /** Times of the last tries, by the pause's key. */
  readonly #lastTries = new Map<string, number>();

  /** errno: "" when it is unknown. */
  failed(id: string, errno: string, now: number): void {
    const key = shared.has(errno) ? sharedKey : id;
    const isPausing = this.#failing.values().some((one) => one.key === key);
    if (!isPausing) this.#tried(key, now);
    this.#failing.delete(id);
    this.#failing.set(id, { key, isReleased: false });
  }

  succeeded(id: string): void {
    const failing = this.#failing.get(id);
    if (failing === undefined) return;
    this.#failing.delete(id);
    if (failing.key !== sharedKey) return;
    for (const one of this.#failing.values()) one.isReleased ||= one.key === sharedKey;
  }

  /** The log has ended. */
  forget(id: string): void {
    this.#failing.delete(id);
    this.#lastTries.delete(id);
    this.#backoff.succeeded(id);
  }

  /** Ids of the logs that cannot be written. */
  get failing(): string[] {
    return [...this.#failing.keys()];
  }

  /** Returns the ids of the logs to be tried now. */
  due(now: number): string[] {
    const keys = new Set<string>();
    const ids: string[] = [];
    for (const [id, failing] of this.#failing) {
      const isDue = !keys.has(failing.key) && this.#backoff.isDue(failing.key, now);
      if (!isDue && !failing.isReleased) continue;
      failing.isReleased = false;
      if (isDue) keys.add(failing.key);
      ids.push(id);
    }
    for (const key of keys) this.#tried(key, now);
    return ids;
  }

  /** Whole milliseconds until a log is due; undefined: none fails. */
  waitMs(now: number): number | undefined {
    if (this.#failing.size === 0) return undefined;
    if (this.#failing.values().some(({ isReleased }) => isReleased)) return 0;
    const due = this.#failing.values().map(({ key }) => this.#backoff.dueMs(key));
    return Math.max(0, Math.ceil(Math.min(...due) - now));
  }

  #tried(key: string, now: number): void {
    if (now - (this.#lastTries.get(key) ?? now) > quietMs) this.#backoff.succeeded(key);
    this.#lastTries.set(key, now);
    this.#backoff.failed(key, now);
  }
}
