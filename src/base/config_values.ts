// Kinds of values in daemon.json: the schema of each, and its conversion.
import { isIP } from "node:net";
import * as v from "valibot";
import { durationMs } from "./duration.ts";
import type { LogLevel } from "./log.ts";
import { mapOf } from "./schema.ts";
import { withoutEnding } from "./text.ts";

/** Selects the conversion of a flag's text to a JSON value; "text" stays unchanged. */
export type Shape = "text" | "switch" | "number" | "list" | "map";

export type Kind<Output> = {
  shape: Shape;
  /** Completes "… must be". */
  allowed: string;
  schema: v.GenericSchema<unknown, Output>;
};

export function kind<Output>(
  shape: Shape,
  allowed: string,
  schema: v.GenericSchema<unknown, Output>,
): Kind<Output> {
  return { shape, allowed, schema };
}

export const flag = kind("switch", "true or false", v.boolean());

/** "auto" is resolved by the host. */
export const flagOrAuto = kind(
  "switch",
  'true, false or "auto"',
  v.union([v.boolean(), v.literal("auto")]),
);

export const text = kind("text", "a string", v.string());

export const absolutePath = kind("text", "an absolute path", path());

const hourMs = 3_600_000;
const unitMs: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: hourMs };

/** Converts to milliseconds. */
export function duration(minMs: number, maxMs = 24 * hourMs): Kind<number> {
  return kind(
    "text",
    `seconds as a number, or a text such as "5s" or "2m", from ${span(minMs)} to ${span(maxMs)}`,
    v.pipe(
      v.union([v.number(), v.string()]),
      v.transform(millisecondsOf),
      v.number(),
      v.minValue(minMs),
      v.maxValue(maxMs),
    ),
  );
}

function millisecondsOf(value: number | string): number {
  if (typeof value === "number") return Math.round(value * 1000);
  if (/^\d+(\.\d+)?$/.test(value)) return Math.round(Number(value) * 1000);
  return Math.round(durationMs(value) ?? Number.NaN);
}

function span(ms: number): string {
  const unit = ["h", "m", "s"].find((u) => ms % (unitMs[u] ?? 1) === 0) ?? "ms";
  return `${ms / (unitMs[unit] ?? 1)}${unit}`;
}

export function integer(min: number, max: number): Kind<number> {
  return kind(
    "number",
    `a whole number from ${min} to ${max}`,
    v.pipe(v.number(), v.integer(), v.minValue(min), v.maxValue(max)),
  );
}

export function choice<const T extends readonly string[]>(options: T): Kind<T[number]> {
  return kind("text", oneOf(options), v.picklist(options));
}

function oneOf(names: readonly string[]): string {
  return `one of ${names.map((name) => `"${name}"`).join(", ")}`;
}

/** One of several names, each converted to a value. */
export function meaning<T>(names: Record<string, T>, normalize = (name: string) => name): Kind<T> {
  return kind(
    "text",
    oneOf(Object.keys(names)),
    v.pipe(
      v.string(),
      v.transform(normalize),
      v.check((name) => Object.hasOwn(names, name)),
      v.transform((name) => names[name] as T),
    ),
  );
}

/** iSulad's levels in any case, converted to one of four. */
export const logLevel = meaning<LogLevel>(
  {
    FATAL: "error",
    ALERT: "error",
    CRIT: "error",
    ERROR: "error",
    WARN: "warn",
    WARNING: "warn",
    NOTICE: "info",
    INFO: "info",
    DEBUG: "debug",
    TRACE: "debug",
  },
  (level) => level.toUpperCase(),
);

/** "overlay" is iSulad's other name of overlay2. */
export const storageDriver = meaning<"auto" | "overlay2" | "native">({
  auto: "auto",
  overlay2: "overlay2",
  overlay: "overlay2",
  native: "native",
});

/** An absolute path without ".." and NUL. */
function path() {
  return v.pipe(
    v.string(),
    v.regex(/^\/[^\0]*$/),
    v.check((p) => !p.split("/").includes("..")),
    v.transform((p) => (p === "/" ? p : withoutEnding(p, "/"))),
  );
}

/** The longest path in sockaddr_un's sun_path, with its NUL. */
const socketPathBytesMax = 107;

export const sockets = kind(
  "list",
  `a list of unix sockets such as "unix:///var/run/isulad.sock", of at most ${socketPathBytesMax} bytes each (no TCP: any client of the socket is root on the node)`,
  v.pipe(
    v.array(
      v.pipe(
        v.string(),
        v.regex(/^unix:\/\/\/[^\0]+$/),
        v.check((host) => Buffer.byteLength(host) - "unix://".length <= socketPathBytesMax),
      ),
    ),
    v.minLength(1),
  ),
);

export const socketPath = kind(
  "text",
  `an absolute path of at most ${socketPathBytesMax} bytes`,
  v.pipe(
    path(),
    v.check((file) => Buffer.byteLength(file) <= socketPathBytesMax),
  ),
);

/** A list, or one text with folders separated as in $PATH (also by "," or ";"). */
export const folders = kind(
  "list",
  'an absolute path, or several in a list or separated by ":"',
  v.pipe(
    v.union([v.array(v.string()), v.string()]),
    v.transform((value) => (typeof value === "string" ? value.split(/[:;,]/) : value)),
    v.array(path()),
    v.minLength(1),
  ),
);

export const texts = kind("list", "a list of strings", v.array(v.string()));

export const imagePatterns = kind(
  "list",
  'a list of image names or patterns such as "busybox:1.37" or "registry.example/base/*"',
  v.array(v.pipe(v.string(), v.regex(/^[A-Za-z0-9*][A-Za-z0-9._\-/:@*[\]]{0,511}$/))),
);

export const repositoryPatterns = kind(
  "list",
  'a list of repositories or patterns without tags such as "library/busybox" or "registry.example:5000/base/*"',
  v.array(
    v.pipe(v.string(), v.regex(/^([A-Za-z0-9*][A-Za-z0-9._\-:*]*\/)*[a-z0-9*][a-z0-9._\-*]*$/)),
  ),
);

export const registries = kind(
  "list",
  'a list of registries such as "registry.example:5000" or "https://mirror.example"',
  v.array(
    v.pipe(
      v.string(),
      v.regex(
        /^(https?:\/\/)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9.-]*)(:\d{1,5})?(\/[^\s?#]*)?$/,
      ),
      v.transform((registry) => withoutEnding(registry, "/")),
    ),
  ),
);

/** Not a wildcard: clients connect to it. */
export const nodeAddress = kind(
  "text",
  'an IP address of the node such as "127.0.0.1"',
  v.pipe(
    v.string(),
    v.check((address) => isIP(address) !== 0 && !/^[0:.]+$/.test(address)),
  ),
);

export const listenAddress = kind(
  "text",
  'an IP address and a port such as "0.0.0.0:5010" or "[::]:5010"',
  v.pipe(
    v.string(),
    v.check((text) => {
      const { address, port } = splitAddress(text);
      return isIP(address) !== 0 && port >= 1 && port <= 65_535;
    }),
  ),
);

/** Of an entry of "hosts". */
export function pathOfSocket(host: string): string {
  return host.replace(/^unix:(\/\/)?/, "");
}

/** Splits "192.0.2.1:80" or "[2001:db8::1]:80". */
export function splitAddress(text: string): { address: string; port: number } {
  const [, six, four = "", port] = /^(?:\[(.*)\]|([^:]*)):(\d{1,5})$/.exec(text) ?? [];
  return { address: six ?? four, port: Number(port) };
}

export const networks = kind(
  "list",
  'a list of networks such as "10.1.0.0/16" or "fd00::/8"',
  v.array(
    v.pipe(
      v.string(),
      v.check((network) => {
        const [, address = "", bits] = /^([^/]+)\/(\d{1,3})$/.exec(network) ?? [];
        return isIP(address) !== 0 && Number(bits) <= (isIP(address) === 4 ? 32 : 128);
      }),
    ),
  ),
);

export const seccompProfile = kind(
  "text",
  'one of "unconfined", "runtime/default", or "localhost/" and an absolute path',
  v.pipe(v.string(), v.regex(/^(|unconfined|(runtime|docker)\/default|localhost\/\/[^\0]+)$/)),
);

/** A program that converts layers of one media type to another, as containerd's stream_processors. */
export type StreamProcessor = {
  /** Media types that it reads from standard input. */
  accepts: string[];
  /** The media type that it writes to standard output. */
  returns: string;
  path: string;
  args: string[];
  /** "NAME=value", added to the daemon's environment. */
  env: string[];
};

const mediaType = v.pipe(v.string(), v.regex(/^[a-z]+\/[A-Za-z0-9.+_-]+$/));

export const streamProcessors: Kind<Record<string, StreamProcessor>> = kind(
  "map",
  'a map such as {"decoder": {"accepts": ["application/vnd.oci.image.layer.v1.tar+gzip+encrypted"], "returns": "application/vnd.oci.image.layer.v1.tar+gzip", "path": "/usr/local/bin/ctd-decoder", "args": [], "env": ["NAME=value"]}}; the path is absolute, or a name to be looked for in the usual folders',
  mapOf(
    v.pipe(v.string(), v.regex(/^[A-Za-z0-9][A-Za-z0-9._-]*$/)),
    v.strictObject({
      accepts: v.pipe(v.array(mediaType), v.minLength(1)),
      returns: mediaType,
      path: v.pipe(v.string(), v.regex(/^(\/[^\0]+|[A-Za-z0-9._-]+)$/)),
      args: v.optional(v.array(v.pipe(v.string(), v.regex(/^[^\0]*$/))), []),
      env: v.optional(v.array(v.pipe(v.string(), v.regex(/^[A-Za-z_]\w*=[^\0]*$/))), []),
    }),
  ),
);

/** Limits are unsigned 64 bit; -1 is RLIM_INFINITY. */
type Ulimit = { type: string; hard: bigint; soft: bigint };

const rlimInfinity = 2n ** 64n - 1n;
const limit = v.pipe(
  v.number(),
  v.integer(),
  v.minValue(-1),
  v.maxValue(Number.MAX_SAFE_INTEGER),
  v.transform((n) => (n === -1 ? rlimInfinity : BigInt(n))),
);
const ulimitName =
  /^(as|core|cpu|data|fsize|locks|memlock|msgqueue|nice|nofile|nproc|rss|rtprio|rttime|sigpending|stack)$/;

export const ulimits = kind(
  "map",
  'a map such as {"nofile": {"Name": "nofile", "Hard": 65536, "Soft": 1024}}; -1 means no limit, and Soft is at most Hard',
  v.pipe(
    mapOf(
      v.pipe(v.string(), v.regex(ulimitName)),
      v.pipe(
        v.strictObject({
          Name: v.optional(v.pipe(v.string(), v.regex(ulimitName))),
          Hard: limit,
          Soft: limit,
        }),
        v.check(({ Hard, Soft }) => Soft <= Hard),
      ),
    ),
    v.transform((entries) =>
      Object.entries(entries).map(([name, { Hard, Soft }]): Ulimit => ({
        type: `RLIMIT_${name.toUpperCase()}`,
        hard: Hard,
        soft: Soft,
      })),
    ),
  ),
);

/** For keys without effect, whose type is checked nevertheless. */
export const textMap = kind("map", "a map of strings", mapOf(v.string(), v.string()));

export const anyMap = kind("map", "a map", mapOf(v.string(), v.unknown()));
