// Formats lines of CRI's log: RFC 3339 time, stream, P (more of this line follows) or F, text. A line is
// copied once, from the input buffer to the output buffer.
import { nowMs } from "../base/clock.ts";

/**
 * Content bytes of one log line, by default and at most; a longer one is written in pieces (kubelet's reader
 * expects this).
 */
export const usualLineBytes = 16_384;
export const lineBytesMax = 65_536;
const newline = 10;
const carriageReturn = 13;

/** "2026-11-21T14:20:00.123456000Z" */
export function timestamp(): string {
  const ms = nowMs();
  const whole = Math.trunc(ms);
  const micros = String(Math.trunc((ms - whole) * 1000)).padStart(3, "0");
  return `${new Date(whole).toISOString().slice(0, -1)}${micros}000Z`;
}

export type Stream = "stdout" | "stderr";
/**
 * The result of a turn. more: there is more to read; some: all that was there is taken; part: only the start of a line
 * is there; empty: nothing was there; end: the stream has ended.
 */
export type Turn = "more" | "some" | "part" | "empty" | "end";

/** hasReturns: lines end with "\r\n"; the log has neither. */
export type LineFormat = { stream: Stream; lineBytes: number; hasReturns: boolean };

/**
 * Formats the complete lines at the start of data into out, at most linesMax; returns their bytes. The rest is an
 * incomplete line of at most lineBytes.
 */
export function cut(
  { stream, lineBytes, hasReturns }: LineFormat,
  data: Buffer,
  out: LogOutput,
  linesMax = Infinity,
): number {
  const prefix = prefixOf(stream);
  let start = 0;
  let at = data.indexOf(newline);
  for (let lines = 0; lines < linesMax; lines++) {
    const stop = at === -1 ? data.length : at;
    if (stop - start > lineBytes) {
      out.line(prefix, "P", data, start, start + lineBytes);
      start += lineBytes;
      continue;
    }
    if (at === -1) return start;
    const hasReturn = hasReturns && at > start && data[at - 1] === carriageReturn;
    out.line(prefix, "F", data, start, hasReturn ? at - 1 : at);
    start = at + 1;
    at = data.indexOf(newline, start);
  }
  return start;
}

/** Formats the end of a stream without a newline, as a partial line. */
export function rest(stream: Stream, data: Buffer, out: LogOutput): void {
  if (data.length > 0) out.line(prefixOf(stream), "P", data, 0, data.length);
}

/** Formats a whole line that is not the container's. */
export function note(stream: Stream, text: string, out: LogOutput): void {
  const data = Buffer.from(text);
  out.line(prefixOf(stream), "F", data, 0, data.length);
}

export function linesIn(data: Buffer): number {
  let lines = 0;
  for (let at = data.indexOf(newline); at !== -1; at = data.indexOf(newline, at + 1)) lines++;
  return lines;
}

function prefixOf(stream: Stream): Buffer {
  return Buffer.from(`${timestamp()} ${stream} `);
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

  /** Returns and clears the collected lines; valid until the next line. */
  drain(): Buffer {
    const data = this.#buffer.subarray(0, this.#length);
    this.#length = 0;
    return data;
  }
}
