// The fields of tar headers: numbers, times, names and pax records.
import { isUtf8 } from "node:buffer";
import { CriError } from "../base/errors.ts";
import { quoted } from "../base/text.ts";

/** ns: 0 to 999,999,999, to be added to the seconds, which may be negative. */
export type TarTime = { s: number; ns: number };

/** The years 1901 to 2446, which is what ext4 keeps. */
const secondsMin = -(2 ** 31);
const secondsMax = 2 ** 34 - 2 ** 31 - 1;

export function bad(what: string): CriError {
  return new CriError("INVALID_ARGUMENT", `not a valid tar stream: ${what}`);
}

/** Up to the first NUL byte. */
export function text(field: Buffer): string {
  const end = field.indexOf(0);
  return nameOf(end < 0 ? field : field.subarray(0, end));
}

/**
 * A name as a string; a byte that is no UTF-8 becomes the surrogate U+DC00 + byte, so that pathOf
 * gives the same bytes again.
 */
export function nameOf(bytes: Buffer): string {
  if (isUtf8(bytes)) return bytes.toString("utf8");
  return bytes
    .toString("latin1")
    .replaceAll(/[\x80-\xff]/g, (char) => String.fromCharCode(0xdc00 + char.charCodeAt(0)));
}

/** The path for the kernel of one that nameOf gave. */
export function pathOf(path: string): string | Buffer {
  if (path.isWellFormed()) return path;
  const parts = path.match(/[\udc80-\udcff]+|[^\udc80-\udcff]+/g) ?? [];
  return Buffer.concat(
    parts.map((part) =>
      /^[\udc80-\udcff]/.test(part)
        ? Buffer.from(part.split("").map((char) => char.charCodeAt(0) - 0xdc00))
        : Buffer.from(part),
    ),
  );
}

/** Octal digits, or GNU's big-endian binary with the first bit set. */
export function number(header: Buffer, at: number, length: number): number {
  const value = signed(header, at, length);
  if (value < 0) throw bad("a negative number");
  return value;
}

/** As number; GNU's binary form may be negative. */
export function signed(header: Buffer, at: number, length: number): number {
  const first = header[at]!;
  let value = 0;
  if (first >= 0x80) {
    // Two's complement; the second bit is the sign.
    value = first >= 0xc0 ? first - 256 : first & 0x3f;
    for (let i = at + 1; i < at + length; i++) value = value * 256 + header[i]!;
  } else {
    const digits = text(header.subarray(at, at + length)).trim();
    if (!/^[0-7]*$/.test(digits)) throw bad(`the number ${quoted(digits)}`);
    value = digits === "" ? 0 : Number.parseInt(digits, 8);
  }
  if (!Number.isSafeInteger(value)) throw bad("a number that is too large");
  return value;
}

export function decimal(value: string, key: string): number {
  const parsed = Number(value);
  if (!/^\d+$/.test(value) || !Number.isSafeInteger(parsed)) {
    throw bad(`${key} is ${quoted(value, 100)}`);
  }
  return parsed;
}

/** Of whole seconds, or of pax's "[-]seconds[.fraction]". Out of the kernel's range: its end. */
export function timeOf(value: number | string): TarTime {
  if (typeof value === "number") return { s: within(value), ns: 0 };
  const [, sign = "", whole = "", fraction = ""] = /^(-?)(\d{1,18})(?:\.(\d*))?$/.exec(value) ?? [];
  if (whole === "") throw bad(`the time ${quoted(value, 100)}`);
  const ns = Number(fraction.slice(0, 9).padEnd(9, "0"));
  if (sign === "") return { s: within(Number(whole)), ns };
  return ns === 0
    ? { s: within(-Number(whole)), ns }
    : { s: within(-Number(whole) - 1), ns: 1e9 - ns };
}

function within(seconds: number): number {
  return Math.min(Math.max(seconds, secondsMin), secondsMax);
}

/** pax records are "LENGTH key=value\n", where LENGTH counts the whole record. */
export function* paxRecords(bytes: Buffer): Generator<[string, Buffer]> {
  let at = 0;
  while (at < bytes.length) {
    const space = bytes.indexOf(0x20, at);
    if (space < 0) throw bad("a pax record without a length");
    const end = at + decimal(bytes.toString("latin1", at, space), "a pax record's length");
    const equals = bytes.indexOf(0x3d, space);
    if (end > bytes.length || equals < 0 || equals >= end || bytes[end - 1] !== 0x0a) {
      throw bad("a pax record that does not end where it says");
    }
    yield [bytes.toString("utf8", space + 1, equals), bytes.subarray(equals + 1, end - 1)];
    at = end;
  }
}
