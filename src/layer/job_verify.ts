// Compares a layer's tree with its manifest, in the unpack helper, confined to the tree.
import * as fs from "node:fs";
import { crc32 } from "node:zlib";
import { errnoOf, messageOf } from "../base/errors.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { deviceNumbers, lgetxattr, llistxattr } from "../sys/path.ts";
import { readLayerManifest, type ManifestEntry } from "./layer_manifest.ts";
import type { ChrootJail } from "./chroot_jail.ts";
import { nameOf, pathOf } from "./tar_fields.ts";
import { isOpaque, isRemoved, opaqueMark, type Path } from "./whiteouts.ts";

/** first: descriptions of the first few; count: all of them. */
export type Differences = { count: number; first: string[] };

const describedMax = 10;
const chunkBytes = 1 << 20;
const formats: Record<ManifestEntry["kind"], [name: string, format: number]> = {
  file: ["file", 0o100000],
  symlink: ["symlink", 0o120000],
  char: ["character device", 0o020000],
  block: ["block device", 0o060000],
  fifo: ["FIFO", 0o010000],
  folder: ["folder", 0o040000],
  implicit: ["folder", 0o040000],
  whiteout: ["whiteout", 0o020000],
};

/** listing: the layer manifest. */
export type VerifyJob = { kind: "verify"; folder: string; listing: string };

export function verifyLayer(job: VerifyJob, jail: ChrootJail): Differences {
  const entries = readLayerManifest(job.listing);
  jail.enter(job.folder);
  try {
    return verifyRoot(entries);
  } finally {
    jail.leave();
  }
}

function verifyRoot(entries: Map<string, ManifestEntry>): Differences {
  const found: Differences = { count: 0, first: [] };
  const inodes = new Map<ManifestEntry, bigint>();
  const report = (path: string, problem: string) => {
    found.count++;
    if (found.first.length < describedMax)
      found.first.push(`${path === "" ? "/" : path}: ${problem}`);
  };
  for (const [path, entry] of entries) {
    try {
      const problem = difference(pathOf(`/${path}`), entry, inodes);
      if (problem !== undefined) report(path, problem);
    } catch (error) {
      report(path, errnoOf(error) === "ENOENT" ? "is missing" : messageOf(error));
    }
  }
  for (const path of unknownPaths(entries)) report(path, "is not part of the layer");
  return found;
}

function difference(
  at: Path,
  entry: ManifestEntry,
  inodes: Map<ManifestEntry, bigint>,
): string | undefined {
  const stat = fs.lstatSync(at, { bigint: true });
  const [name, format] = formats[entry.kind];
  if ((Number(stat.mode) & 0o170000) !== format) return `is not a ${name}`;
  const inode = inodes.get(entry);
  if (inode !== undefined) return inode === stat.ino ? undefined : "is another file";
  inodes.set(entry, stat.ino);
  const hides = stat.isDirectory() && isOpaque(at);
  if (hides !== entry.isOpaque) return `${hides ? "hides" : "shows"} the layers below`;
  if (entry.kind === "implicit") return undefined; // has the attributes of the layers below
  if (entry.kind === "whiteout") return isRemoved(stat) ? undefined : "is not a whiteout";
  return ofContent(at, stat, entry) ?? ofAttributes(at, stat, entry);
}

function ofAttributes(at: Path, stat: fs.BigIntStats, entry: ManifestEntry): string | undefined {
  const { uid, gid, mode, mtime, kind } = entry;
  if (Number(stat.uid) !== uid || Number(stat.gid) !== gid) {
    return `belongs to ${stat.uid}:${stat.gid}, not to ${uid}:${gid}`;
  }
  const has = Number(stat.mode) & 0o7777;
  if (kind !== "symlink" && has !== mode) {
    return `has the mode ${has.toString(8)}, not ${mode.toString(8)}`;
  }
  const ns = BigInt(mtime.s) * 1_000_000_000n + BigInt(mtime.ns);
  // Some file systems store whole seconds only.
  if (stat.mtimeNs !== ns && stat.mtimeNs !== ns - BigInt(mtime.ns)) return "has another time";
  const known = new Map(entry.xattrs);
  for (const name of llistxattr(at)) {
    if (/^(?:user\.|system\.posix_acl_)|^security\.capability$/.test(name) && !known.has(name)) {
      return `has the attribute ${name}`;
    }
  }
  for (const [name, value] of known) {
    const actual = lgetxattr(at, name);
    if (actual === undefined || !Buffer.from(actual).equals(value)) return `has another ${name}`;
  }
  return undefined;
}

function ofContent(at: Path, stat: fs.BigIntStats, entry: ManifestEntry): string | undefined {
  const { kind, size, crc, target, major, minor } = entry;
  if (kind === "symlink") {
    const link = nameOf(fs.readlinkSync(at, { encoding: "buffer" }));
    return link === target ? undefined : "leads elsewhere";
  }
  if (kind === "char" || kind === "block") {
    const actual = deviceNumbers(stat.rdev);
    return actual.major === major && actual.minor === minor ? undefined : "is another device";
  }
  if (kind !== "file") return undefined;
  if (Number(stat.size) !== size) return `has ${stat.size} bytes, not ${size}`;
  return crcOf(at, entry) === crc ? undefined : "has other content";
}

function crcOf(at: Path, { parts, size }: ManifestEntry): number {
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

function* unknownPaths(entries: Map<string, ManifestEntry>): Generator<string> {
  for (const [folder, { kind }] of entries) {
    if (kind !== "folder" && kind !== "implicit") continue;
    let names: Buffer[];
    try {
      names = fs.readdirSync(pathOf(`/${folder}`), { encoding: "buffer" });
    } catch {
      continue; // reported already
    }
    for (const name of names) {
      const path = folder === "" ? nameOf(name) : `${folder}/${nameOf(name)}`;
      if (!entries.has(path) && nameOf(name) !== opaqueMark) yield path;
    }
  }
}
