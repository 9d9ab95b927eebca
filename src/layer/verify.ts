// Whether a layer's tree still is what was unpacked. In the helper, confined to the tree.
import * as fs from "node:fs";
import { crc32 } from "node:zlib";
import { errnoOf, messageOf } from "../base/errors.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { deviceNumbers, lgetxattr, llistxattr } from "../sys/path.ts";
import { type Listed } from "./layer_manifest.ts";
import { nameOf, pathOf } from "./tar_fields.ts";
import { isOpaque, isRemoved, opaqueMark } from "./whiteouts.ts";

/** What was found; the first few are told, all are counted. */
export type Differences = { count: number; first: string[] };

const toldMax = 10;
const chunkBytes = 1 << 20;
const formats: Record<Listed["kind"], number> = {
  file: 0o100000,
  symlink: 0o120000,
  char: 0o020000,
  block: 0o060000,
  fifo: 0o010000,
  folder: 0o040000,
  implicit: 0o040000,
  whiteout: 0o020000,
};

/** Compares the tree in "/", where this process is confined to it, with its listing. */
export function verify(entries: Map<string, Listed>): Differences {
  const found: Differences = { count: 0, first: [] };
  const inodes = new Map<Listed, bigint>();
  const tell = (path: string, what: string) => {
    found.count++;
    if (found.first.length < toldMax) found.first.push(`${path === "" ? "/" : path}: ${what}`);
  };
  for (const [path, listed] of entries) {
    try {
      const what = difference(pathOf(`/${path}`), listed, inodes);
      if (what !== undefined) tell(path, what);
    } catch (error) {
      tell(path, errnoOf(error) === "ENOENT" ? "is missing" : messageOf(error));
    }
  }
  for (const path of strangers(entries)) tell(path, "is none of the layer's");
  return found;
}

function difference(
  at: string | Buffer,
  listed: Listed,
  inodes: Map<Listed, bigint>,
): string | undefined {
  const stat = fs.lstatSync(at, { bigint: true });
  if ((Number(stat.mode) & 0o170000) !== formats[listed.kind]) return `is no ${listed.kind}`;
  const inode = inodes.get(listed);
  if (inode !== undefined) return inode === stat.ino ? undefined : "is another file";
  inodes.set(listed, stat.ino);
  const hides = stat.isDirectory() && isOpaque(at);
  if (hides !== listed.isOpaque) return `${hides ? "hides" : "shows"} what lies below`;
  if (listed.kind === "implicit") return undefined; // looks as in the layers below
  if (listed.kind === "whiteout") return isRemoved(stat) ? undefined : "is no whiteout";
  return ofContent(at, stat, listed) ?? ofAttributes(at, stat, listed);
}

function ofAttributes(
  at: string | Buffer,
  stat: fs.BigIntStats,
  listed: Listed,
): string | undefined {
  const { uid, gid, mode, mtime, kind } = listed;
  if (Number(stat.uid) !== uid || Number(stat.gid) !== gid) {
    return `belongs to ${stat.uid}:${stat.gid}, not to ${uid}:${gid}`;
  }
  const has = Number(stat.mode) & 0o7777;
  if (kind !== "symlink" && has !== mode) {
    return `has the mode ${has.toString(8)}, not ${mode.toString(8)}`;
  }
  const ns = BigInt(mtime.s) * 1_000_000_000n + BigInt(mtime.ns);
  // Some file systems keep whole seconds.
  if (stat.mtimeNs !== ns && stat.mtimeNs !== ns - BigInt(mtime.ns)) return "has another time";
  const known = new Map(listed.xattrs);
  for (const name of llistxattr(at)) {
    if (/^(?:user\.|system\.posix_acl_)|^security\.capability$/.test(name) && !known.has(name)) {
      return `has the attribute ${name}`;
    }
  }
  for (const [name, value] of known) {
    const there = lgetxattr(at, name);
    if (there === undefined || !Buffer.from(there).equals(value)) return `has another ${name}`;
  }
  return undefined;
}

function ofContent(at: string | Buffer, stat: fs.BigIntStats, listed: Listed): string | undefined {
  const { kind, size, crc, target, major, minor } = listed;
  if (kind === "symlink") {
    const link = nameOf(fs.readlinkSync(at, { encoding: "buffer" }));
    return link === target ? undefined : "leads elsewhere";
  }
  if (kind === "char" || kind === "block") {
    const there = deviceNumbers(stat.rdev);
    return there.major === major && there.minor === minor ? undefined : "is another device";
  }
  if (kind !== "file") return undefined;
  if (Number(stat.size) !== size) return `has ${stat.size} bytes, not ${size}`;
  return crcOf(at, listed) === crc ? undefined : "has other content";
}

function crcOf(at: string | Buffer, { parts, size }: Listed): number {
  using file = Descriptor.open(at, fs.constants.O_RDONLY | fs.constants.O_NOFOLLOW);
  const buffer = Buffer.allocUnsafe(Math.min(chunkBytes, Math.max(size, 1)));
  const ranges = parts.length > 0 ? parts : [0, size];
  let crc = 0;
  for (let i = 0; i < ranges.length; i += 2) {
    const end = ranges[i]! + ranges[i + 1]!;
    for (let from = ranges[i]!; from < end;) {
      const got = fs.readSync(file.fd, buffer, 0, Math.min(buffer.length, end - from), from);
      if (got === 0) return -1;
      crc = crc32(buffer.subarray(0, got), crc);
      from += got;
    }
  }
  return crc;
}

/** Paths in the tree that no entry has. */
function* strangers(entries: Map<string, Listed>): Generator<string> {
  for (const [folder, { kind }] of entries) {
    if (kind !== "folder" && kind !== "implicit") continue;
    let names: Buffer[];
    try {
      names = fs.readdirSync(pathOf(`/${folder}`), { encoding: "buffer" });
    } catch {
      continue; // told already
    }
    for (const name of names) {
      const path = folder === "" ? nameOf(name) : `${folder}/${nameOf(name)}`;
      if (!entries.has(path) && nameOf(name) !== opaqueMark) yield path;
    }
  }
}
