// Parses the fields of tar headers: numbers, times, names and pax records.
import { isAscii, isUtf8 } from "node:buffer";
import { CriError } from "../base/errors.ts";
import { quoted } from "../base/text.ts";

/** ns: 0 to 999,999,999, to be added to the seconds, which may be negative. */
export type TarTime = { s: number; ns: number };

/** The years 1901 to 2446, the range of ext4. */
const secondsMin = -(2 ** 31);
const secondsMax = 2 ** 34 - 2 ** 31 - 1;

export function bad(what: string): CriError {
  return new CriError("INVALID_ARGUMENT", `not a valid tar stream: ${what}`);
}

export function text(field: Buffer): string {
  const end = field.indexOf(0);
  return nameOf(end < 0 ? field : field.subarray(0, end));
}

/**
 * Converts a name to a string; in a name that is not UTF-8, each byte above 0x7F becomes the surrogate
 * U+DC00 + byte, so that pathOf() restores the same bytes.
 */
export function nameOf(bytes: Buffer): string {
  if (isUtf8(bytes)) return bytes.toString("utf8");
  return bytes
    .toString("latin1")
    .replaceAll(/[\x80-\xff]/g, (char) => String.fromCharCode(0xdc00 + char.charCodeAt(0)));
}

/** Converts a string of nameOf() back to a path for the kernel. */
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

/** Returns the name in a header, which has the folder of a long name in a field of its own, the prefix. */
export function headerName(header: Buffer): string {
  const [name, prefix] = [text(header.subarray(0, 100)), prefixOf(header)];
  return prefix === "" ? name : `${prefix}/${name}`;
}

/**
 * GNU's format has times in place of the prefix. Go before 1.8 (Docker before 17.06) nevertheless wrote a prefix
 * there when the uid, the gid or the size was too large for octal digits. Go's reader
 * distinguishes it from times by the same rule.
 */
function prefixOf(header: Buffer): string {
  const magic = header.toString("latin1", 257, 265);
  const prefix = text(header.subarray(345, 500));
  if (magic.startsWith("ustar\0")) return prefix;
  const isOldGo = magic === "ustar  \0" && !(isTime(header, 345) && isTime(header, 357));
  return isOldGo && isAscii(Buffer.from(prefix)) ? prefix : "";
}

/** True for an absent time, too. */
function isTime(header: Buffer, at: number): boolean {
  const isBinary = header[at]! >= 0x80;
  return isBinary || /^[0-7]*$/.test(text(header.subarray(at, at + 12)).trim());
}

/** Parses octal digits, or GNU's big-endian binary form, whose first bit is set. */
export function number(header: Buffer, at: number, length: number): number {
  const value = signed(header, at, length);
  if (value < 0) throw bad("a negative number");
  return value;
}

/** Like number(), but accepts negative numbers of GNU's binary form. */
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

/** The ids that the kernel has: 2^32 - 1 stands for none. */
const idMax = 2 ** 32 - 2;

/** Parses an owner; a negative one is the id that the kernel makes of it, as in Go. */
export function ownerOf(value: number | string, key: string): number {
  const id = typeof value === "number" ? value : Number(value);
  const isNumber = typeof value === "number" || /^-?\d+$/.test(value);
  if (!isNumber || id < -(2 ** 31) || id > idMax) {
    throw bad(`an invalid owner: ${key} is ${quoted(String(value), 100)}`);
  }
  return id === -1 ? 0 : id >>> 0; // chown(2) changes nothing by -1
}

/** Parses whole seconds, or pax's "[-]seconds[.fraction]", and clamps them to the kernel's range. */
export function timeOf(value: number | string): TarTime {
  if (typeof value === "number") return { s: clampSeconds(value), ns: 0 };
  const [, sign = "", whole = "", fraction = ""] = /^(-?)(\d{1,18})(?:\.(\d*))?$/.exec(value) ?? [];
  if (whole === "") throw bad(`the time ${quoted(value, 100)}`);
  const ns = Number(fraction.slice(0, 9).padEnd(9, "0"));
  if (sign === "") return { s: clampSeconds(Number(whole)), ns };
  return ns === 0
    ? { s: clampSeconds(-Number(whole)), ns }
    : { s: clampSeconds(-Number(whole) - 1), ns: 1e9 - ns };
}

/** Splits a time of stat(2), which is negative before 1970. */
export function timeFromNs(total: bigint): TarTime {
  const nsPerS = 1_000_000_000n;
  const ns = ((total % nsPerS) + nsPerS) % nsPerS;
  return { s: Number((total - ns) / nsPerS), ns: Number(ns) };
}

function clampSeconds(seconds: number): number {
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
      throw bad("a pax record whose length is wrong");
    }
    yield [bytes.toString("utf8", space + 1, equals), bytes.subarray(equals + 1, end - 1)];
    at = end;
  }
}
