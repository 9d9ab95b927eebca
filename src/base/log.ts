// The daemon's log: one line an event, as text for a person or as JSON for a collector.
import { createConsola, LogLevels, type LogObject } from "consola";
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
  level: LogLevel;
  format: LogFormat;
  /** Standard error if none is given: it is what systemd's journal keeps. */
  stream?: { write(text: string): unknown };
};

export function createLog(options: LogOptions): Log {
  const stream = options.stream ?? process.stderr;
  const line = options.format === "json" ? jsonLine : textLine;
  const consola = createConsola({
    level: LogLevels[options.level],
    throttle: -1, // Equal lines count: consola would fold them into one.
    reporters: [
      {
        log: (entry) => {
          stream.write(`${line(entry)}\n`);
        },
      },
    ],
  });
  return roomLog(consola, "");
}

/** For tests and for short-lived helpers that have nothing to say. */
export function silentLog(): Log {
  return createLog({ level: "error", format: "text", stream: { write: () => true } });
}

/** For work that nobody waits for: logs its failure. */
export function logFailure(log: Log, msg: string): (error: unknown) => void {
  return (error) => log.error(msg, { error: messageOf(error) });
}

function roomLog(consola: ReturnType<typeof createConsola>, room: string): Log {
  const tagged = room === "" ? consola : consola.withTag(room);
  return {
    error: (msg, fields) => tagged.error({ message: msg, args: [fields] }),
    warn: (msg, fields) => tagged.warn({ message: msg, args: [fields] }),
    info: (msg, fields) => tagged.info({ message: msg, args: [fields] }),
    debug: (msg, fields) => tagged.debug({ message: msg, args: [fields] }),
    child: (name) => roomLog(consola, room === "" ? name : `${room}/${name}`),
  };
}

function partsOf(entry: LogObject): { msg: string; fields: [string, string | number | boolean][] } {
  const [msg, fields] = entry.args as [string, Fields | undefined];
  const kept: [string, string | number | boolean][] = [];
  for (const [name, value] of Object.entries(fields ?? {})) {
    if (typeof value === "string") kept.push([name, shorten(value, partBytesMax)]);
    else if (value !== undefined)
      kept.push([name, typeof value === "bigint" ? String(value) : value]);
  }
  return { msg: shorten(msg, partBytesMax), fields: kept };
}

function jsonLine(entry: LogObject): string {
  const { msg, fields } = partsOf(entry);
  const own = {
    time: entry.date.toISOString(),
    level: entry.type,
    room: entry.tag || undefined,
    msg,
  };
  // Ours last, so that a field named "level" cannot pose as the line's.
  return jsonText({ ...own, ...Object.fromEntries(fields), ...own });
}

function textLine(entry: LogObject): string {
  const { msg, fields } = partsOf(entry);
  const room = entry.tag ? `${entry.tag}: ` : "";
  const tail = fields.map(([name, value]) => ` ${name}=${fieldText(value)}`).join("");
  return `${entry.date.toISOString()} ${entry.type.toUpperCase().padEnd(5)} ${room}${oneLine(msg)}${tail}`;
}

/** Of one field or message: some are what a plugin or a registry has said. */
const partBytesMax = 8 << 10;

function fieldText(value: string | number | boolean): string {
  if (typeof value === "string" && /^$|[\s"=\\\p{Cc}]/u.test(value))
    return oneLine(jsonText(value));
  return String(value);
}

/** What a container, a plugin or a registry says must not be able to forge a line of ours. */
function oneLine(text: string): string {
  return text.replaceAll(/[\p{Cc}\u2028\u2029]/gu, (c) => {
    if (c === "\n") return String.raw`\n`;
    return c === "\t" ? c : String.raw`\u` + c.codePointAt(0)!.toString(16).padStart(4, "0");
  });
}
