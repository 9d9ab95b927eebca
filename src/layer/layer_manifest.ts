// What a layer holds, as its tar stream said: one JSON array a line, written beside the layer's tree.
// Decision: a CRC of each file and not a digest: it is to find what a disk has lost, costs a tenth, and
// against somebody who may write to the graph folder neither would help.
import * as fs from "node:fs";
import { CriError } from "../base/errors.ts";
import { jsonText, ownJsonValue } from "../base/json.ts";
import type { Descriptor } from "../sys/descriptor.ts";
import { writeAll } from "../sys/file.ts";
import type { TarHeader } from "./tar.ts";
import type { TarTime } from "./tar_fields.ts";

export type ListedKind =
  | "file"
  | "symlink"
  | "char"
  | "block"
  | "fifo"
  | "folder"
  /** A folder that no entry described: only that it is one is known. */
  | "implicit"
  | "whiteout";

export type Listed = {
  kind: ListedKind;
  mode: number;
  uid: number;
  gid: number;
  mtime: TarTime;
  size: number;
  /** CRC-32 of a file's data, one part after another. */
  crc: number;
  /** Where these parts lie, offset and length in turn; empty: the file has no holes. */
  parts: number[];
  /** Of a symlink. */
  target: string;
  /** Of a device. */
  major: number;
  minor: number;
  isOpaque: boolean;
  xattrs: [name: string, value: Uint8Array][];
};

const kinds: Record<string, ListedKind> = {
  "0": "file",
  "2": "symlink",
  "3": "char",
  "4": "block",
  "5": "folder",
  "6": "fifo",
};

/** What is known of a folder that no entry described. */
export function implicitFolder(): Listed {
  return {
    kind: "implicit",
    mode: 0o755,
    uid: 0,
    gid: 0,
    mtime: { s: 0, ns: 0 },
    size: 0,
    crc: 0,
    parts: [],
    target: "",
    major: 0,
    minor: 0,
    isOpaque: false,
    xattrs: [],
  };
}

/** What an entry says; size and content come with its data. */
export function listedAs(header: TarHeader, isOpaque: boolean): Listed {
  const { type, mode, uid, gid, mtime, size, link, major, minor, isSparse } = header;
  const isDevice = type === "3" || type === "4";
  return {
    kind: kinds[type] ?? "file",
    mode,
    uid,
    gid,
    mtime,
    size: type === "0" ? size : 0,
    crc: 0,
    parts: isSparse ? [0, 0] : [],
    target: type === "2" ? link : "",
    major: isDevice ? major : 0,
    minor: isDevice ? minor : 0,
    isOpaque,
    xattrs: header.xattrs
      .filter(([name]) => isKept(name))
      .map(([name, value]) => [name, Buffer.from(value)]),
  };
}

/** What is kept: of a user's own, capabilities and access lists; labels are the node's matter. */
export function isKept(name: string): boolean {
  if (name.startsWith("user.")) return !name.startsWith("user.overlay.");
  return name === "security.capability" || name.startsWith("system.posix_acl_");
}

/** Puts a part of a file with holes behind the others. */
export function addPart(parts: number[], position: number, length: number): void {
  const end = parts.at(-2)! + parts.at(-1)!;
  if (position === end) parts[parts.length - 1]! += length;
  else parts.push(position, length);
}

const flushBytes = 1 << 20;
const listingBytesPerEntry = 1024;
const listingBytesMin = 64 << 20;

/** What the list of a layer may take that may have so many entries. */
export function listingBytesMax(entriesMax: number): number {
  return Math.max(listingBytesMin, entriesMax * listingBytesPerEntry);
}

/**
 * Several names of one file are those whose Listed is the same object.
 * @throws CriError RESOURCE_EXHAUSTED when it takes more than bytesMax: JSON has six characters for some.
 */
export function writeListing(
  file: Descriptor,
  entries: Map<string, Listed>,
  bytesMax: number,
): void {
  const numbers = new Map<Listed, number>();
  let lines: string[] = [];
  let length = 0;
  let written = 0;
  const flush = () => {
    const bytes = Buffer.from(lines.join(""));
    written += bytes.length;
    if (written > bytesMax) {
      const message = `the list of what it holds takes over ${bytesMax} bytes (layer-max-entries)`;
      throw new CriError("RESOURCE_EXHAUSTED", message);
    }
    writeAll(file, bytes);
    lines = [];
    length = 0;
  };
  let count = 0;
  for (const [path, listed] of entries) {
    const known = numbers.get(listed);
    const line = `${jsonText(known === undefined ? [path, ...fieldsOf(listed)] : [path, known])}\n`;
    if (known === undefined) numbers.set(listed, count);
    count++;
    lines.push(line);
    length += line.length;
    if (length >= flushBytes) flush();
  }
  flush();
}

function fieldsOf(o: Listed): unknown[] {
  const { kind, mode, uid, gid, mtime, size, crc, parts, target, major, minor } = o;
  const xattrs = o.xattrs.map(([name, value]) => [name, Buffer.from(value).toString("base64")]);
  const rest = [size, crc, parts, target, major, minor, o.isOpaque ? 1 : 0, xattrs];
  return [kind, mode, uid, gid, mtime.s, mtime.ns, ...rest];
}

type Fields = [
  path: string,
  kind: ListedKind,
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

/** @throws Error when it is not what writeListing wrote. */
export function readListing(path: string): Map<string, Listed> {
  const entries = new Map<string, Listed>();
  const byNumber: Listed[] = [];
  for (const line of fs.readFileSync(path, "utf8").split("\n")) {
    if (line === "") continue;
    const fields = ownJsonValue(line) as Fields | [path: string, known: number];
    const listed = fields.length === 2 ? byNumber[fields[1]] : listedOf(fields);
    if (listed === undefined) throw new Error(`no entry ${fields[1]}`);
    byNumber.push(listed);
    entries.set(fields[0], listed);
  }
  return entries;
}

function listedOf(fields: Fields): Listed {
  const [, kind, mode, uid, gid, s, ns, size, crc, parts, ...rest] = fields;
  const [target, major, minor, isOpaque, xattrs] = rest;
  return {
    kind,
    mode,
    uid,
    gid,
    mtime: { s, ns },
    size,
    crc,
    parts,
    target,
    major,
    minor,
    isOpaque: isOpaque === 1,
    xattrs: xattrs.map(([name, value]) => [name, Buffer.from(value, "base64")]),
  };
}
