// Unpacks a layer's tar stream into a tree for overlayfs, in the unpack helper. It must run inside a chroot
// into that tree: names are validated here, but only the chroot protects against symlinks.
import * as fs from "node:fs";
import { crc32 } from "node:zlib";
import { CriError, errnoOf } from "../base/errors.ts";
import { clip, quoted } from "../base/text.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { writeAll } from "../sys/file.ts";
import { lsetxattr, mknod, setTimes } from "../sys/path.ts";
import { LayerMemory } from "./layer_memory.ts";
import { addPart, implicitFolder, type ManifestEntry, entryFromHeader } from "./layer_manifest.ts";
import { isFolder, SymlinkPaths } from "./symlink_paths.ts";
import type { Unpacker } from "./tar_split.ts";
import type { TarHeader } from "./tar_reader.ts";
import { pathOf } from "./tar_fields.ts";
import { markOpaque, markRemoved, isWhiteoutDevice, opaqueMark } from "./whiteouts.ts";

const S_IFCHR = 0o020000;
const S_IFBLK = 0o060000;
const S_IFIFO = 0o010000;
const whiteoutPrefix = ".wh.";
/** Each replaced folder costs a scan of all known entries. */
const replacedFoldersMax = 1000;
const trustedMax = 5;
const keyBytesMax = 100;
/** A disk with less counts as full. */
const littleBytes = 1 << 20;

export class Untar implements Unpacker {
  /** Content bytes written so far. */
  bytes = 0;
  hasReplaced = false;
  /** Some of the trusted.* attributes that the layer has, which are left out. */
  readonly trusted = new Set<string>();
  #replacedFolders = 0;
  readonly #depthMax: number;
  readonly #memory: LayerMemory;
  #open: Descriptor | undefined;
  #file: ManifestEntry | undefined;
  #path = "";
  /** Entries of the tree by path without symlinks; "" is its root. Complete after end(). */
  readonly entries = new Map<string, ManifestEntry>([["", implicitFolder()]]);
  /** Folder names in entries → path without symlinks. */
  readonly #folders = new Map<string, string>([["", ""]]);
  /** Folders without an entry of their own that this layer removes, too: only other entries in them keep them. */
  readonly #removed = new Set<ManifestEntry>();
  readonly #symlinks = new SymlinkPaths(this.entries);

  constructor({ depthMax, entriesMax }: { depthMax: number; entriesMax: number }) {
    this.#depthMax = depthMax;
    this.#memory = new LayerMemory(entriesMax);
  }

  get writing(): string | undefined {
    return this.#open === undefined ? undefined : this.#path;
  }

  /** Folders without an entry of their own, which get their attributes from the layers below. */
  get implicit(): string[] {
    return [...this.entries].filter(([, { kind }]) => kind === "implicit").map(([path]) => path);
  }

  entry(header: TarHeader): void {
    try {
      this.#entry(header);
    } catch (error) {
      throw withEntry(error, header.name);
    }
  }

  #entry(header: TarHeader): void {
    this.#noteTrusted(header);
    this.#memory.addEntry(header);
    const parts = this.#partsOf(header.name);
    const leaf = parts.pop();
    if (leaf === undefined) {
      if (header.type !== "5") return; // as in containerd: the root is there already, and stays a folder
      this.entries.set("", entryFromHeader(header, this.entries.get("")!.isOpaque));
      return;
    }
    const folder = this.#makeFolders(parts.join("/"));
    if (leaf.startsWith(whiteoutPrefix)) this.#whiteout(folder, leaf);
    else this.#create(joined(folder, leaf), header);
  }

  /** Attributes by which overlayfs works are never set; an image has them by mistake, of a copied layer. */
  #noteTrusted({ xattrs }: TarHeader): void {
    for (const [key] of xattrs) {
      if (!key.startsWith("trusted.") || this.trusted.size === trustedMax) continue;
      this.trusted.add(clip(key, keyBytesMax));
    }
  }

  data(chunk: Uint8Array, position: number): void {
    if (this.#open === undefined) return;
    const file = this.#file!;
    this.bytes += chunk.length;
    file.crc = crc32(chunk, file.crc);
    if (file.parts.length > 0) addPart(file.parts, position, chunk.length);
    try {
      writeAll(this.#open, chunk, position);
    } catch (error) {
      throw withEntry(error, this.#path);
    }
  }

  entryEnd(): void {
    if (this.#open === undefined) return;
    const file = this.#file!;
    using open = this.#open;
    this.#open = undefined;
    const { fd } = open;
    try {
      if (file.parts.length > 0) fs.ftruncateSync(fd, file.size);
      if (file.uid !== 0 || file.gid !== 0) fs.fchownSync(fd, file.uid, file.gid);
      // chown clears the setuid bit, so chmod follows.
      if ((file.mode & 0o7000) !== 0) fs.fchmodSync(fd, file.mode);
      setXattrs(absolute(this.#path), file);
      if (file.mtime.ns === 0 && file.mtime.s >= 0) fs.futimesSync(fd, file.mtime.s, file.mtime.s);
      else setTimes(absolute(this.#path), file.mtime);
    } catch (error) {
      throw withEntry(error, this.#path);
    }
  }

  /** Sets the folders' attributes; no entry may follow. */
  end(): void {
    for (const [path, { kind }] of this.entries) {
      if (kind === "whiteout" && this.#isBelowOpaque(path)) {
        // It has nothing to hide, and overlayfs would list it: below an opaque folder it merges no other layer.
        fs.unlinkSync(absolute(path));
        this.entries.delete(path);
      }
    }
    this.#removeEmptied();
    // Last, since adding content changes a folder's mtime, and content may inherit its owner and mode.
    for (const [path, folder] of this.entries) {
      try {
        setFolderAttributes(absolute(path), folder);
      } catch (error) {
        throw withEntry(error, path);
      }
    }
  }

  /** True below an opaque folder; the root does not count, since overlayfs merges it even if it is opaque. */
  #isBelowOpaque(path: string): boolean {
    return this.#foldersAbove(path).some(({ isOpaque }) => isOpaque);
  }

  /** Without the root. */
  *#foldersAbove(path: string): Generator<ManifestEntry> {
    for (let end = path.lastIndexOf("/"); end > 0; end = path.lastIndexOf("/", end - 1)) {
      yield this.entries.get(path.slice(0, end))!;
    }
  }

  /** Makes whiteouts of removed folders that were there only for whiteouts in them, which end() removed. */
  #removeEmptied(): void {
    if (this.#removed.size === 0) return;
    for (const [path, { kind }] of this.entries) {
      if (kind === "implicit" || kind === "whiteout") continue;
      for (const folder of this.#foldersAbove(path)) this.#removed.delete(folder);
    }
    // A folder's entry precedes those in it.
    for (const path of this.implicit.toReversed()) {
      const isInside = this.#foldersAbove(path).some((folder) => this.#removed.has(folder));
      if (!isInside && !this.#removed.has(this.entries.get(path)!)) continue;
      fs.rmdirSync(absolute(path));
      this.entries.delete(path);
      if (!isInside && !this.#isBelowOpaque(path)) this.#markRemoved(path);
    }
  }

  #markRemoved(path: string): void {
    markRemoved(absolute(path));
    this.entries.set(path, { ...implicitFolder(), kind: "whiteout" });
  }

  /**
   * Like mkdir -p; follows symlinks of this layer, also to folders that only a lower layer has, or that come later: as in
   * containerd, the folder is made in the tree.
   */
  #makeFolders(folder: string): string {
    const known = this.#folders.get(folder);
    if (known !== undefined) return known;
    const slash = folder.lastIndexOf("/");
    const parent = slash > 0 ? this.#makeFolders(folder.slice(0, slash)) : "";
    const path = this.#makeFolder(joined(parent, folder.slice(slash + 1)));
    this.#memory.addFolderName(folder);
    this.#folders.set(folder, path);
    return path;
  }

  #makeFolder(path: string): string {
    const existing = this.entries.get(path);
    if (isFolder(existing)) return path;
    if (existing?.kind === "symlink") {
      const target = this.#symlinks.target(path);
      if (target !== undefined) return target === "" ? "" : this.#makeFolders(target);
      throw bad("its path leads through a symlink that is not to a folder");
    }
    if (path.split("/").length > this.#depthMax) throw bad(this.#tooDeep);
    this.#memory.addImplicitFolder(path);
    const isRemoved = existing?.kind === "whiteout";
    if (isRemoved) fs.unlinkSync(absolute(path));
    fs.mkdirSync(absolute(path), 0o755);
    const folder = { ...implicitFolder(), isOpaque: isRemoved };
    if (isRemoved) this.#removed.add(folder);
    this.entries.set(path, folder);
    return path;
  }

  #whiteout(folder: string, leaf: string): void {
    if (leaf === opaqueMark) {
      this.entries.get(folder)!.isOpaque = true;
      return;
    }
    if (leaf.startsWith(whiteoutPrefix + whiteoutPrefix)) return; // metadata of aufs
    const name = leaf.slice(whiteoutPrefix.length);
    if (name === "" || name === "." || name === "..") throw bad("it is a whiteout without a name");
    const path = joined(folder, name);
    // A whiteout hides only lower layers: this layer's own entry of that name stays.
    const existing = this.entries.get(path);
    if (isFolder(existing)) existing!.isOpaque = true;
    if (existing?.kind === "implicit") this.#removed.add(existing);
    if (existing === undefined) this.#markRemoved(path);
  }

  #create(path: string, header: TarHeader): void {
    const existing = this.entries.get(path);
    const wantsFolder = header.type === "5";
    const stays = isFolder(existing) && wantsFolder;
    if (existing !== undefined && !stays) this.#clear(path, existing);
    // For overlayfs the device is a whiteout.
    if (header.type === "3" && isWhiteoutDevice(header.major, header.minor)) {
      return this.#markRemoved(path);
    }
    if (header.type === "1") return this.#link(path, header.link);
    const isOpaque = wantsFolder && (existing?.kind === "whiteout" || existing?.isOpaque === true);
    const entry = entryFromHeader(header, isOpaque);
    if (!stays) this.#make(path, header, entry);
    this.entries.set(path, entry);
    if (wantsFolder || header.type === "0") return;
    const at = absolute(path);
    if (header.type === "2") {
      if (entry.uid !== 0 || entry.gid !== 0) fs.lchownSync(at, entry.uid, entry.gid);
    } else setOwnerAndMode(at, entry);
    setXattrs(at, entry);
    setTimes(at, entry.mtime);
  }

  #link(path: string, link: string): void {
    const parts = this.#partsOf(link);
    const leaf = parts.pop();
    if (leaf === undefined) throw bad("it is a hard link to the root");
    const folder = this.#symlinks.folder(parts.join("/"));
    const target = joined(folder ?? "", leaf);
    const existing = folder === undefined ? undefined : this.entries.get(target);
    if (existing === undefined || existing.kind === "whiteout") {
      throw bad(`it is a hard link to ${quoted(link)}, which this layer does not have`);
    }
    if (isFolder(existing)) throw bad("it is a hard link to a folder");
    fs.linkSync(absolute(target), absolute(path));
    this.entries.set(path, existing);
  }

  #make(path: string, header: TarHeader, entry: ManifestEntry): void {
    const at = absolute(path);
    switch (header.type) {
      case "0":
        this.#open = Descriptor.create(at, header.mode & 0o777);
        this.#file = entry;
        this.#path = path;
        return;
      case "2":
        fs.symlinkSync(pathOf(header.link), at);
        return;
      case "3":
      case "4":
        mknod(at, header.type === "3" ? S_IFCHR : S_IFBLK, header.major, header.minor);
        return;
      case "5":
        fs.mkdirSync(at, 0o755);
        return;
      case "6":
        mknod(at, S_IFIFO, 0, 0);
        return;
      default:
        throw bad(`it has the unknown type ${quoted(header.type)}`);
    }
  }

  /** Removes an earlier entry. */
  #clear(path: string, existing: ManifestEntry): void {
    this.hasReplaced ||= isFolder(existing) || existing.kind === "file";
    if (isFolder(existing) || this.#symlinks.followed.delete(path)) this.#forget(path);
    this.entries.delete(path);
    fs.rmSync(absolute(path), { recursive: isFolder(existing) });
  }

  /** Forgets all entries in a folder or behind a symlink. */
  #forget(path: string): void {
    if (++this.#replacedFolders > replacedFoldersMax) {
      throw bad(`it replaces a folder, after over ${replacedFoldersMax} such entries`);
    }
    for (const [name, real] of this.#folders) {
      if (isIn(name, path) || isIn(real, path)) this.#folders.delete(name);
    }
    for (const known of this.entries.keys()) {
      if (isIn(known, path)) this.entries.delete(known);
    }
  }

  #partsOf(name: string): string[] {
    if (name.includes("\0")) throw bad("its name has a NUL byte");
    const parts: string[] = [];
    for (const part of name.split("/")) {
      if (part === "" || part === ".") continue;
      if (part !== "..") parts.push(part);
      else if (parts.pop() === undefined) throw bad(`".." in the name ${quoted(name)}`);
    }
    if (parts.length > this.#depthMax) throw bad(this.#tooDeep);
    return parts;
  }

  get #tooDeep(): string {
    return `its path is more than ${this.#depthMax} folders deep`;
  }
}

/** Sets a folder's attributes; other kinds have theirs already. */
export function setFolderAttributes(at: string | Buffer, entry: ManifestEntry): void {
  if (!isFolder(entry)) return;
  if (entry.isOpaque) markOpaque(at);
  if (entry.kind === "implicit") return;
  setOwnerAndMode(at, entry);
  setXattrs(at, entry);
  setTimes(at, entry.mtime);
}

function isIn(path: string, folder: string): boolean {
  return path === folder || path.startsWith(`${folder}/`);
}

function joined(folder: string, leaf: string): string {
  return folder === "" ? leaf : `${folder}/${leaf}`;
}

function absolute(path: string): string | Buffer {
  return pathOf(`/${path}`);
}

function setOwnerAndMode(at: string | Buffer, { uid, gid, mode }: ManifestEntry): void {
  if (uid !== 0 || gid !== 0) fs.lchownSync(at, uid, gid);
  fs.chmodSync(at, mode);
}

/** Removes unsupported attributes from the entry, so that verification does not expect them. */
function setXattrs(at: string | Buffer, entry: ManifestEntry): void {
  for (const attribute of entry.xattrs) {
    const [name, value] = attribute;
    try {
      lsetxattr(at, name, value);
    } catch (error) {
      // The file system, or this kind of file, does not support such attributes.
      const code = errnoOf(error);
      if (code === "ENOSPC" && hasSpace(at)) {
        const size = `${name} of ${value.length} bytes`;
        throw bad(`its attribute ${size} is larger than the file system of graph takes`);
      }
      const isUnsupported = code === "ENOTSUP" || code === "EOPNOTSUPP";
      if (!isUnsupported && !(name.startsWith("user.") && code === "EPERM")) throw error;
      entry.xattrs = entry.xattrs.filter((other) => other !== attribute);
    }
  }
}

/** True if a disk is not full: ext4, for example, has ENOSPC also for attributes that fill over a block. */
function hasSpace(at: string | Buffer): boolean {
  const { bavail, bsize } = fs.statfsSync(at);
  return bavail * bsize > littleBytes;
}

function bad(reason: string): CriError {
  return new CriError("INVALID_ARGUMENT", reason);
}

const layerErrors = /^(?:ENAMETOOLONG|ELOOP|ENOTDIR|EINVAL|EEXIST|ENOENT|ERANGE|E2BIG|EFBIG)$/;

/** Adds the entry's name to an error; kernel errors that the layer did not cause are returned unchanged. */
function withEntry(error: unknown, name: string): unknown {
  const errno = errnoOf(error) ?? "";
  const isCriError = error instanceof CriError;
  if (!isCriError && !layerErrors.test(errno)) return error;
  const why = isCriError ? error.message : `it cannot be created (${errno})`;
  const code = isCriError ? error.code : "INVALID_ARGUMENT";
  return new CriError(code, `entry ${quoted(name)}: ${why}`, { cause: error });
}
