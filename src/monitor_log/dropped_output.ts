// Decides when the output of a container whose log cannot be written is dropped, counts it, and words the note of it.
//
// Decision: a workload goes on whatever the node's disk does, as with containerd and conmon. While the disk is full for a
// few seconds, the output waits in the streams, and nothing is lost; so it is for ever with `log-on-error: block`. An error
// that does not pass by itself makes no one wait. The log itself says what it lacks.
export type OnLogError = "drop" | "block";

/** A disk that is full for less time loses no output. */
export const usualStallMs = 5_000;
/** Errors that last until someone mends the disk or the file. */
const lasting: ReadonlySet<string> = new Set(["EROFS", "EIO", "EPERM", "EACCES"]);

/** sinceMs, untilMs: since the epoch. */
type Dropped = { bytes: number; lines: number; sinceMs: number; untilMs: number; errno: string };

export class DroppedOutput {
  readonly #onError: OnLogError;
  readonly #stallMs: number;
  #errno = "";
  /** The first failure since the last write, by performance.now(). */
  #failingSince: number | undefined;
  /** What the log does not say yet. */
  #unsaid: Dropped | undefined;
  #bytes = 0;

  constructor(onError: OnLogError, stallMs = usualStallMs) {
    this.#onError = onError;
    this.#stallMs = stallMs;
  }

  /** Bytes dropped so far. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Bytes that the log does not tell of yet. */
  get unsaidBytes(): number {
    return this.#unsaid?.bytes ?? 0;
  }

  /** The failure of the log, while it cannot be written; since: by performance.now(). */
  get failure(): { errno: string; since: number } | undefined {
    if (this.#failingSince === undefined) return undefined;
    return { errno: this.#errno, since: this.#failingSince };
  }

  failed(errno: string, now: number): void {
    this.#errno = errno;
    this.#failingSince ??= now;
  }

  /** The log has been written. */
  wrote(): void {
    this.#failingSince = undefined;
  }

  isDue(now: number): boolean {
    if (this.#onError === "block" || this.#failingSince === undefined) return false;
    return lasting.has(this.#errno) || now - this.#failingSince >= this.#stallMs;
  }

  add(bytes: number, lines: number, atMs: number): void {
    if (bytes === 0) return;
    this.#bytes += bytes;
    this.#unsaid ??= { bytes: 0, lines: 0, sinceMs: atMs, untilMs: atMs, errno: this.#errno };
    this.#unsaid.bytes += bytes;
    this.#unsaid.lines += lines;
    this.#unsaid.untilMs = atMs;
  }

  /** Returns what the log has to say of dropped output; undefined: nothing. */
  note(): string | undefined {
    if (this.#unsaid === undefined) return undefined;
    const { bytes, lines, sinceMs, untilMs, errno } = this.#unsaid;
    const time = (ms: number) => new Date(ms).toISOString();
    const why = errno === "" ? "" : ` (${errno})`;
    return (
      `isulad-ts: ${bytes} bytes of output with ${lines} line ends were dropped ` +
      `from ${time(sinceMs)} to ${time(untilMs)}: this log could not be written${why}`
    );
  }

  said(): void {
    this.#unsaid = undefined;
  }
}
