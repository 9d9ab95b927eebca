// Formats tables, ids, times, sizes and JSON like crictl. Pure.
import type Long from "long";
import { byteText } from "../base/byte_text.ts";
import { toBigInt } from "../base/int64.ts";
import { exactIntegers, jsonText, trustedJsonValue } from "../base/json.ts";
import { printable } from "../base/text.ts";
import { cellsOf, padded } from "./cells.ts";

const columnWidthMin = 20;
const columnGap = 3;

/** Cleans text that a container, an image or a registry chooses: it must not move the cursor or begin a line. */
export function lineText(text: string): string {
  return printable(text).replaceAll(/[\n\t]/g, " ");
}

/**
 * Escapes what JSON leaves as it is in strings, and printable() replaces: DEL and C1, which begin a terminal's escape
 * sequences, too, format characters and separators. The text stays valid, and means the same.
 */
export function escapedControls(text: string, format: "json" | "yaml" = "json"): string {
  const hex = (code: number, digits: number) => code.toString(16).padStart(digits, "0");
  return text.replaceAll(unshown, (character) => {
    const code = character.codePointAt(0)!;
    // JSON has no escape for these but a surrogate pair, which not every reader of YAML takes for one character.
    if (character.length > 1 && format === "yaml") return String.raw`\U` + hex(code, 8);
    const units = Array.from({ length: character.length }, (_, at) => character.charCodeAt(at));
    return units.map((unit) => String.raw`\u` + hex(unit, 4)).join("");
  });
}

const unshown = /[\u007f-\u009f]|\p{Cf}|\p{Zl}|\p{Zp}/gu;

/** True for text that escapedControls() changes. */
export function hasUnshown(text: string): boolean {
  return text.search(unshown) >= 0;
}

/** As jsonText(), for a terminal. */
export function shownJson(value: unknown, indent?: number): string {
  return escapedControls(jsonText(value, indent));
}

/** Formats left-aligned columns like crictl; the last one is not padded. */
export function table(texts: readonly (readonly string[])[]): string {
  const rows = texts.map((row) => row.map(lineText));
  const widths: number[] = [];
  for (const row of rows) {
    for (const [column, cell] of row.entries()) {
      widths[column] = Math.max(widths[column] ?? columnWidthMin, cellsOf(cell) + columnGap);
    }
  }
  const line = (row: readonly string[]) =>
    row.map((cell, i) => (i === row.length - 1 ? cell : padded(cell, widths[i] ?? 0))).join("");
  return rows.map((row) => `${line(row)}\n`).join("");
}

/** Returns the first 13 characters of an id without a digest's algorithm. */
export function shortId(id: string): string {
  return id.replace(/^sha256:/, "").slice(0, 13);
}

const ages: readonly [limitSeconds: number, unitSeconds: number, unit: string][] = [
  [60, 1, "second"],
  [3600, 60, "minute"],
  [48 * 3600, 3600, "hour"],
  [14 * 86400, 86400, "day"],
  [60 * 86400, 7 * 86400, "week"],
  [730 * 86400, 30 * 86400, "month"],
  [Infinity, 365 * 86400, "year"],
];

/** Formats the age of a time in nanoseconds since the epoch, like crictl. */
export function age(atNs: Long | number | null | undefined, nowMs: number = Date.now()): string {
  const seconds = Math.floor((nowMs - Number(toBigInt(atNs) / 1_000_000n)) / 1000);
  if (seconds < 1) return "Less than a second ago";
  const [, unitSeconds, unit] = ages.find(([limit]) => seconds < limit)!;
  const count = unit === "hour" ? Math.round(seconds / 3600) : Math.floor(seconds / unitSeconds);
  if (count === 1 && unit === "minute") return "About a minute ago";
  if (count === 1 && unit === "hour") return "About an hour ago";
  return `${count} ${unit}${count === 1 ? "" : "s"} ago`;
}

/** Formats bytes as 4.26MB. */
export function size(bytes: Long | number | bigint | null | undefined): string {
  return byteText(typeof bytes === "bigint" ? bytes : toBigInt(bytes));
}

/** Formats nanoseconds since the epoch in the terminal's time zone. */
export function localTime(ns: Long | number | null | undefined): { day: string; clock: string } {
  const time = new Date(Number(toBigInt(ns) / 1_000_000n));
  const two = (part: number) => String(part).padStart(2, "0");
  const day = [time.getFullYear(), two(time.getMonth() + 1), two(time.getDate())].join("-");
  const clock = [time.getHours(), time.getMinutes(), time.getSeconds()].map(two).join(":");
  return { day, clock };
}

/** Formats seconds as 0:05, 12:03 or 3:02:01. */
export function clockText(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  const two = (count: number) => String(count).padStart(2, "0");
  const rest = two(whole % 60);
  return hours > 0 ? `${hours}:${two(minutes)}:${rest}` : `${minutes}:${rest}`;
}

const timeFields = new Set(["createdAt", "startedAt", "finishedAt"]);
// Maps whose keys are user data, not field names.
const mapFields = new Set(["labels", "annotations", "info", "sysctls", "unified"]);

/** Options of protobufjs's toObject for protoJson. */
export const jsonForm = { longs: String, enums: String, bytes: String, defaults: true };

/** Converts toObject's result to crictl's JSON: camelCase, sorted keys, no nulls. */
export function protoJson(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(protoJson);
  if (value === null || typeof value !== "object") return value;
  const out: Record<string, unknown> = {};
  for (const [key, field] of Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))) {
    if (field === null) continue;
    const name = key.replaceAll(/_([a-z])/g, (_match, letter: string) => letter.toUpperCase());
    out[name] = mapFields.has(key) ? field : protoJson(field);
  }
  return out;
}

/** Converts a status's times to RFC 3339, like crictl's inspect commands. */
export function readableTimes(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(readableTimes);
  if (value === null || typeof value !== "object") return value;
  const entries = Object.entries(value).map(([key, field]) => [
    key,
    timeFields.has(key) && typeof field === "string"
      ? timestamp(BigInt(field))
      : readableTimes(field),
  ]);
  return Object.fromEntries(entries);
}

/** Formats RFC 3339 with nanoseconds, in UTC. */
export function timestamp(ns: bigint): string {
  const seconds = new Date(Number(ns / 1_000_000_000n) * 1000).toISOString().slice(0, 19);
  return `${seconds}.${String(ns % 1_000_000_000n).padStart(9, "0")}Z`;
}

/** Parses the values of a verbose answer's info map as JSON, if they are. */
export function infoJson(info: Record<string, string> | null | undefined): object {
  const parse = (text: string): unknown => {
    try {
      return trustedJsonValue(text, exactIntegers);
    } catch {
      return text;
    }
  };
  return Object.fromEntries(Object.entries(info ?? {}).map(([key, text]) => [key, parse(text)]));
}
