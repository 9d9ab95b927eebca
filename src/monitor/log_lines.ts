// CRI's log format: RFC 3339 time, stream, P (more of this line follows) or F, text.
// A line is copied once, from the buffer it was read into to the one that is written.

/** Content bytes of one log line; a longer one is written in pieces (kubelet's reader expects this). */
export const maxLineBytes = 16_384;
const readBytes = 128 << 10;
const newline = 10;

/** "2026-11-21T14:20:00.123456000Z" */
export function timestamp(): string {
  const ms = performance.timeOrigin + performance.now();
  const whole = Math.trunc(ms);
  const micros = String(Math.trunc((ms - whole) * 1000)).padStart(3, "0");
  return `${new Date(whole).toISOString().slice(0, -1)}${micros}000Z`;
}

/** Every stream is read through this one buffer: one thread reads them all, one after another. */
const scratch = Buffer.allocUnsafeSlow(maxLineBytes + readBytes);

/** Cuts one stream into log lines. */
export class LogLines {
  readonly #stream: "stdout" | "stderr";
  /** The start of a line whose end has not come yet; never longer than a line may be. */
  #held = Buffer.alloc(0);

  constructor(stream: "stdout" | "stderr") {
    this.#stream = stream;
  }

  /** Where the next read goes; `take` must follow at once. */
  space(): Uint8Array {
    this.#held.copy(scratch);
    return scratch.subarray(this.#held.length);
  }

  /** Takes count bytes that were read into space. */
  take(count: number, out: LogOutput): void {
    const end = this.#held.length + count;
    const data = scratch.subarray(0, end);
    const prefix = Buffer.from(`${timestamp()} ${this.#stream} `);
    let from = this.#held.length; // Of what was held no byte is a newline.
    let start = 0;
    for (;;) {
      const at = data.indexOf(newline, from);
      const stop = at === -1 ? end : at;
      while (stop - start > maxLineBytes) {
        out.line(prefix, "P", data, start, start + maxLineBytes);
        start += maxLineBytes;
      }
      if (at === -1) break;
      out.line(prefix, "F", data, start, at);
      start = from = at + 1;
    }
    this.#held = Buffer.from(data.subarray(start));
  }

  /** The output's end: what has no newline is a line too. */
  finish(out: LogOutput): void {
    if (this.#held.length === 0) return;
    const prefix = Buffer.from(`${timestamp()} ${this.#stream} `);
    out.line(prefix, "F", this.#held, 0, this.#held.length);
    this.#held = Buffer.alloc(0);
  }
}

/** Collects lines to be written at once. */
export class LogOutput {
  #buffer = Buffer.allocUnsafeSlow(512 << 10);
  #length = 0;

  line(prefix: Buffer, tag: "P" | "F", source: Buffer, start: number, end: number): void {
    const need = prefix.length + 3 + end - start;
    if (this.#length + need > this.#buffer.length) this.#grow(need);
    const out = this.#buffer;
    let at = this.#length;
    at += prefix.copy(out, at);
    out[at++] = tag === "F" ? 70 : 80;
    out[at++] = 32;
    at += source.copy(out, at, start, end);
    out[at++] = newline;
    this.#length = at;
  }

  #grow(need: number): void {
    const larger = Buffer.allocUnsafeSlow(Math.max(this.#buffer.length * 2, this.#length + need));
    this.#buffer.copy(larger, 0, 0, this.#length);
    this.#buffer = larger;
  }

  /** What was collected; valid until the next line. */
  drain(): Buffer {
    const data = this.#buffer.subarray(0, this.#length);
    this.#length = 0;
    return data;
  }
}
