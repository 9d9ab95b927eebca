// Reads and writes a layer's manifest: the attributes of each path in its tree as the tar stream stated them,
// one JSON array per line, in a file next to the tree.
// Decision: files have a CRC, not a digest. A CRC detects disk corruption at a tenth of the cost, and neither would
// help against an attacker who can write to the graph folder.
import * as fs from "node:fs";
import { CriError } from "../base/errors.ts";
import { jsonText, verbatimJsonValue } from "../base/json.ts";
import type { Descriptor } from "../sys/descriptor.ts";
import { writeAll } from "../sys/file.ts";
import type { TarHeader } from "./tar_reader.ts";
import type { TarTime } from "./tar_fields.ts";

type EntryKind =
  | "file"
  | "symlink"
  | "char"
  | "block"
  | "fifo"
  | "folder"
  /** A folder without an entry of its own, so its attributes are unknown. */
  | "implicit"
  | "whiteout";

export type ManifestEntry = {
  kind: EntryKind;
  mode: number;
  uid: number;
  gid: number;
  mtime: TarTime;
  size: number;
  /** CRC-32 of a file's data, without holes. */
  crc: number;
  /** Offsets and lengths of the data, alternating; empty: the file has no holes. */
  parts: number[];
  /** Of a symlink. */
  target: string;
  /** Of a device. */
  major: number;
  minor: number;
  isOpaque: boolean;
  xattrs: [name: string, value: Uint8Array][];
};

const kinds: Record<string, EntryKind> = {
  "0": "file",
  "2": "symlink",
  "3": "char",
  "4": "block",
  "5": "folder",
  "6": "fifo",
};

export function implicitFolder(): ManifestEntry {
  const attributes = { mode: 0o755, uid: 0, gid: 0, mtime: { s: 0, ns: 0 }, xattrs: [] };
  const content = { size: 0, crc: 0, parts: [], target: "", major: 0, minor: 0 };
  return { kind: "implicit", ...attributes, ...content, isOpaque: false };
}

/** Converts a tar header; a file's size and CRC follow from its data. */
export function entryFromHeader(header: TarHeader, isOpaque: boolean): ManifestEntry {
  const { type, mode, uid, gid, mtime, size, link, major, minor, isSparse } = header;
  const isDevice = type === "3" || type === "4";
  const attributes = { mode, uid, gid, mtime, isOpaque };
  return {
    ...attributes,
    kind: kinds[type] ?? "file",
    size: type === "0" ? size : 0,
    crc: 0,
    parts: isSparse ? [0, 0] : [],
    target: type === "2" ? link : "",
    major: isDevice ? major : 0,
    minor: isDevice ? minor : 0,
    xattrs: header.xattrs
      .filter(([name]) => isKept(name))
      .map(([name, value]) => [name, Buffer.from(value)]),
  };
}

/** True for user.*, capabilities and ACLs, which are kept. The node sets security labels. */
export function isKept(name: string): boolean {
  if (name.startsWith("user.")) return !name.startsWith("user.overlay.");
  return name === "security.capability" || name.startsWith("system.posix_acl_");
}

/** Appends a part of a file with holes, or extends the last one. */
export function addPart(parts: number[], position: number, length: number): void {
  const end = parts.at(-2)! + parts.at(-1)!;
  if (position === end) parts[parts.length - 1]! += length;
  else parts.push(position, length);
}

const flushBytes = 1 << 20;
const bytesPerEntry = 1024;
const bytesMin = 64 << 20;

/** The maximum size of a manifest, given the maximum number of entries. */
export function manifestBytesMax(entriesMax: number): number {
  return Math.max(bytesMin, entriesMax * bytesPerEntry);
}

/**
 * Paths that share one ManifestEntry object are hard links to one file.
 * @throws CriError RESOURCE_EXHAUSTED above bytesMax: JSON escapes some characters as six.
 */
export function writeLayerManifest(
  file: Descriptor,
  entries: Map<string, ManifestEntry>,
  bytesMax: number,
): void {
  const numbers = new Map<ManifestEntry, number>();
  let lines: string[] = [];
  let length = 0;
  let written = 0;
  const flush = () => {
    const bytes = Buffer.from(lines.join(""));
    written += bytes.length;
    if (written > bytesMax) {
      const message = `its layer manifest takes over ${bytesMax} bytes (layer-max-entries)`;
      throw new CriError("RESOURCE_EXHAUSTED", message);
    }
    writeAll(file, bytes);
    lines = [];
    length = 0;
  };
  let count = 0;
  for (const [path, entry] of entries) {
    const known = numbers.get(entry);
    const line = `${jsonText(known === undefined ? [path, ...fieldsOf(entry)] : [path, known])}\n`;
    if (known === undefined) numbers.set(entry, count);
    count++;
    lines.push(line);
    length += line.length;
    if (length >= flushBytes) flush();
  }
  flush();
}

function fieldsOf(o: ManifestEntry): unknown[] {
  const { kind, mode, uid, gid, mtime, size, crc, parts, target, major, minor } = o;
  const xattrs = o.xattrs.map(([name, value]) => [name, Buffer.from(value).toString("base64")]);
  const rest = [size, crc, parts, target, major, minor, o.isOpaque ? 1 : 0, xattrs];
  return [kind, mode, uid, gid, mtime.s, mtime.ns, ...rest];
}

type Fields = [
  path: string,
  kind: EntryKind,
  mode: number,
  uid: number,
  gid: number,
  s: number,
  ns: number,
  size: number,
  crc: number,
  parts: number[],
  target: string,
  major: number,
  minor: number,
  isOpaque: number,
  xattrs: [string, string][],
];

/** @throws Error when the file was not written by writeLayerManifest. */
export function readLayerManifest(path: string): Map<string, ManifestEntry> {
  const entries = new Map<string, ManifestEntry>();
  const byNumber: ManifestEntry[] = [];
  for (const line of fs.readFileSync(path, "utf8").split("\n")) {
    if (line === "") continue;
    const fields = verbatimJsonValue(line) as Fields | [path: string, known: number];
    const entry = fields.length === 2 ? byNumber[fields[1]] : entryFromFields(fields);
    if (entry === undefined)
      throw new Error(`a hard link to line ${fields[1]}, which does not exist`);
    byNumber.push(entry);
    entries.set(fields[0], entry);
  }
  return entries;
}

function entryFromFields(fields: Fields): ManifestEntry {
  const [, kind, mode, uid, gid, s, ns, size, crc, parts, ...rest] = fields;
  const [target, major, minor, isOpaque, xattrs] = rest;
  const plain = { kind, mode, uid, gid, size, crc, parts, target, major, minor };
  return {
    ...plain,
    mtime: { s, ns },
    isOpaque: isOpaque === 1,
    xattrs: xattrs.map(([name, value]) => [name, Buffer.from(value, "base64")]),
  };
}
