// The daemon's log: writes one line an event, as text for people or as JSON for collectors.
import { fstatSync, writeSync } from "node:fs";
import { messageOf } from "./errors.ts";
import { jsonText } from "./json.ts";
import { shorten } from "./text.ts";

export type LogLevel = "error" | "warn" | "info" | "debug";

export type LogFormat = "text" | "json";

export type Fields = Record<string, string | number | boolean | bigint | undefined>;

export type Log = {
  error(msg: string, fields?: Fields): void;
  warn(msg: string, fields?: Fields): void;
  info(msg: string, fields?: Fields): void;
  debug(msg: string, fields?: Fields): void;
  /** A log whose lines carry the name of a room. */
  child(room: string): Log;
};

export type LogOptions = {
  /** Read at each line: a getter makes the level changeable. */
  level: LogLevel;
  format: LogFormat;
  /** By default standard error, which systemd's journal keeps. */
  stream?: { write(text: string): unknown };
  /** The stream is the journal's: it takes each line's priority, by which journalctl -p selects, from a prefix. */
  isJournal?: boolean;
};

const levels: readonly LogLevel[] = ["error", "warn", "info", "debug"];
/** syslog(3); the journal removes the prefix (sd-daemon(3)). */
const priorities: Record<LogLevel, string> = {
  error: "<3>",
  warn: "<4>",
  info: "<6>",
  debug: "<7>",
};

export function createLog(options: LogOptions): Log {
  const stream = options.stream ?? standardError();
  const format = options.format === "json" ? jsonLine : textLine;
  const write = (line: Line) => {
    if (levels.indexOf(line.level) > levels.indexOf(options.level)) return;
    const prefix = options.isJournal === true ? priorities[line.level] : "";
    stream.write(`${prefix}${format(line)}\n`);
  };
  return roomLog(write, "");
}

/**
 * A line that cannot be written is lost and ends nothing: where the disk is full, the containers go on. The engine's
 * stream of a file would write nothing more after its first failure; that of a pipe or a socket keeps what a slow
 * reader has not taken.
 */
function standardError(): NonNullable<LogOptions["stream"]> {
  if (isFile(2)) return { write: writeNow };
  return process.stderr.on("error", () => {});
}

function isFile(descriptor: number): boolean {
  try {
    const stat = fstatSync(descriptor);
    return !stat.isFIFO() && !stat.isSocket();
  } catch {
    return true; // It is closed: writeNow() loses its lines, too.
  }
}

/** True after a line of which only the beginning was written. */
let isTorn = false;

function writeNow(text: string): void {
  const bytes = new TextEncoder().encode(isTorn ? `\n${text}` : text);
  try {
    isTorn = writeSync(2, bytes) < bytes.length;
  } catch {
    // The line is lost.
  }
}

/** A log that writes nothing, for tests. */
export function silentLog(): Log {
  return createLog({ level: "error", format: "text", stream: { write: () => true } });
}

/** Logs the failure of background work. */
export function logFailure(log: Log, msg: string): (error: unknown) => void {
  return (error) => log.error(msg, { error: messageOf(error) });
}

type Line = { level: LogLevel; room: string; msg: string; fields: Fields | undefined };

function roomLog(write: (line: Line) => void, room: string): Log {
  return {
    error: (msg, fields) => write({ level: "error", room, msg, fields }),
    warn: (msg, fields) => write({ level: "warn", room, msg, fields }),
    info: (msg, fields) => write({ level: "info", room, msg, fields }),
    debug: (msg, fields) => write({ level: "debug", room, msg, fields }),
    child: (name) => roomLog(write, room === "" ? name : `${room}/${name}`),
  };
}

function boundedFields(fields: Fields = {}): [string, string | number | boolean][] {
  const kept: [string, string | number | boolean][] = [];
  for (const [name, value] of Object.entries(fields)) {
    if (typeof value === "string") kept.push([name, shorten(value, partBytesMax)]);
    else if (value !== undefined)
      kept.push([name, typeof value === "bigint" ? String(value) : value]);
  }
  return kept;
}

function jsonLine({ level, room, msg, fields }: Line): string {
  const time = new Date().toISOString();
  const own = { time, level, room: room || undefined, msg: shorten(msg, partBytesMax) };
  // Again after the fields, so that a field named "level" cannot replace the line's.
  return jsonText({ ...own, ...Object.fromEntries(boundedFields(fields)), ...own });
}

function textLine({ level, room, msg, fields }: Line): string {
  const head = `${new Date().toISOString()} ${level.toUpperCase().padEnd(5)}`;
  const text = oneLine(shorten(msg, partBytesMax));
  const tail = boundedFields(fields).map(([name, value]) => ` ${name}=${fieldText(value)}`);
  return `${head} ${room === "" ? "" : `${room}: `}${text}${tail.join("")}`;
}

/** Bound of one field or message: plugins and registries supply some. */
const partBytesMax = 8 << 10;

function fieldText(value: string | number | boolean): string {
  if (typeof value === "string" && /^$|[\s"=\\\p{Cc}\p{Cf}]/u.test(value))
    return oneLine(jsonText(value));
  return String(value);
}

/** Text from containers, plugins and registries must not forge a line of the log, nor change how one appears. */
function oneLine(text: string): string {
  return text.replaceAll(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, (c) => {
    if (c === "\n") return String.raw`\n`;
    if (c === "\t") return c;
    const units = Array.from({ length: c.length }, (_, at) => c.charCodeAt(at));
    return units.map((unit) => String.raw`\u` + unit.toString(16).padStart(4, "0")).join("");
  });
}
