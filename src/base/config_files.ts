// Reads daemon.json and its drop-ins, the files daemon.json.d/*.json beside it, and merges them in order.
// Decision: maps merge by key and all else replaces, since a list that grew by each file could never be
// shortened by a later one.
import { readdirSync } from "node:fs";
import { join } from "node:path";
import type { IdleKey } from "./config_idle_keys.ts";
import type { Key } from "./config_key.ts";
import { findKey, spellings } from "./config_keys.ts";
import { nearest } from "./edit_distance.ts";
import { CriError, errnoOf, messageOf } from "./errors.ts";
import { type JsonNode, JsonSyntaxError, merged, parseWithLines, plainValue } from "./json.ts";
import { readSettingsBytes } from "./settings_file.ts";

const defaultConfigFile = "/etc/isulad/daemon.json";

/** A configured value that is not validated yet. where: its place, for messages. */
export type Given = { value: unknown; where: string; origin: string; node?: JsonNode };

type GivenKey = [key: Key | IdleKey, given: Given];

export type ConfigFiles = {
  given: Map<Key | IdleKey, Given>;
  /** Values that a later file replaced; they are without effect, but must be valid. */
  replaced: GivenKey[];
  problems: string[];
  /** Paths in the order in which they merge. */
  files: string[];
};

/**
 * file: undefined stands for the default one, which may be missing.
 * @throws CriError INVALID_ARGUMENT for a file that cannot be read.
 */
export function readConfigFiles(file: string | undefined): ConfigFiles {
  const path = file ?? defaultConfigFile;
  const found: ConfigFiles = { given: new Map(), replaced: [], problems: [], files: [] };
  for (const one of [path, ...dropIns(`${path}.d`)]) {
    const bytes = readConfigFile(one, file === undefined && one === path);
    if (bytes === undefined) continue;
    found.files.push(one);
    for (const [key, given] of keysOf(one, bytes, found.problems)) add(found, key, given);
  }
  return found;
}

/** Returns the paths of a folder's JSON files, sorted; hidden ones are editors' temporary files. */
function dropIns(folder: string): string[] {
  try {
    const names = readdirSync(folder).filter((name) => /^[^.].*\.json$/.test(name));
    return names.sort().map((name) => join(folder, name));
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return [];
    throw unreadable(error);
  }
}

function readConfigFile(path: string, mayBeMissing: boolean): Uint8Array | undefined {
  try {
    return readSettingsBytes(path);
  } catch (error) {
    if (mayBeMissing && errnoOf(error) === "ENOENT") return undefined;
    throw unreadable(error);
  }
}

export function unreadable(error: unknown): CriError {
  const message = `Cannot read the configuration: ${messageOf(error)}`;
  return new CriError("INVALID_ARGUMENT", message, { cause: error });
}

/** Returns the keys of one file; what is wrong goes to problems. */
function keysOf(path: string, bytes: Uint8Array, problems: string[]): Map<Key | IdleKey, Given> {
  const given = new Map<Key | IdleKey, Given>();
  const top = parsed(path, bytes, problems);
  if (top === undefined) return given;
  if (top.kind !== "object") {
    problems.push(`${path}:${top.line}: must be a JSON object: { "key": value, … }`);
    return given;
  }
  for (const { key: spelling, line, node } of top.members) {
    const where = `${path}:${line}`;
    const key = findKey(spelling);
    if (!key) {
      problems.push(`${where}: unknown key ${unknownKey(spelling)}`);
      continue;
    }
    const earlier = given.get(key);
    if (earlier) problems.push(`${where}: "${key.key}" is given twice, first at ${earlier.where}`);
    given.set(key, { value: plainValue(node), where, origin: where, node });
  }
  return given;
}

function parsed(path: string, bytes: Uint8Array, problems: string[]): JsonNode | undefined {
  const text = utf8(bytes);
  if (text === undefined) {
    problems.push(`${path}:${invalidLine(bytes)}: not UTF-8: save the file in that encoding`);
    return undefined;
  }
  try {
    return parseWithLines(text, path);
  } catch (error) {
    if (!(error instanceof JsonSyntaxError)) throw error;
    problems.push(`${path}:${error.line}: not JSON: ${error.message}`);
    return undefined;
  }
}

/** undefined for invalid bytes; a replaced one could be part of a path or a password. */
function utf8(bytes: Uint8Array): string | undefined {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return undefined;
  }
}

/** Returns the first line, counted from 1, that is no UTF-8; a line feed is never part of another character. */
function invalidLine(bytes: Uint8Array): number {
  for (let line = 1, start = 0; ; line++) {
    const end = bytes.indexOf(0x0a, start);
    if (end < 0 || utf8(bytes.subarray(start, end)) === undefined) return line;
    start = end + 1;
  }
}

function unknownKey(spelling: string): string {
  // A key with more than half of its letters different is no mistyped one.
  const other = findKey(nearest(spelling.replaceAll("_", "-"), spellings, spelling.length / 2));
  if (other === undefined)
    return `"${spelling}"; isulad-ts config default --explain lists all keys`;
  return `"${spelling}"; the nearest known key is "${other.key}" (${other.kind.allowed})`;
}

/** Merges a key of a later file into those of the earlier ones. */
function add({ given, replaced }: ConfigFiles, key: Key | IdleKey, later: Given): void {
  const earlier = given.get(key);
  if (earlier?.node?.kind === "object" && later.node?.kind === "object") {
    const node = merged(earlier.node, later.node);
    const origin = `${earlier.origin}, ${later.origin}`;
    given.set(key, { value: plainValue(node), where: earlier.where, origin, node });
    return;
  }
  if (earlier !== undefined) replaced.push([key, earlier]);
  given.set(key, later);
}
