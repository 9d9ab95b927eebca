// A layer's tar stream becomes a folder that overlayfs can stack. Only ever used inside a chroot
// into that folder: names are checked here, but it is the chroot that holds against symlinks.
import * as fs from "node:fs";
import { crc32 } from "node:zlib";
import { CriError, errnoOf } from "../base/errors.ts";
import { quoted } from "../base/text.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { writeAll } from "../sys/file.ts";
import { lsetxattr, mknod, setTimes } from "../sys/path.ts";
import { LayerMemory } from "./layer_memory.ts";
import { addPart, implicitFolder, type Listed, listedAs } from "./layer_manifest.ts";
import type { Unpacker } from "./tar_split.ts";
import type { TarHeader } from "./tar.ts";
import { pathOf } from "./tar_fields.ts";
import { markOpaque, markRemoved, meansRemoved, opaqueMark } from "./whiteouts.ts";

const S_IFCHR = 0o020000;
const S_IFBLK = 0o060000;
const S_IFIFO = 0o010000;
const whiteoutPrefix = ".wh.";
/** Each of them makes all that is known be looked through. */
const replacedFoldersMax = 1000;
const symlinksMax = 40;

export class Untar implements Unpacker {
  #bytes = 0;
  #replacedFolders = 0;
  readonly #depthMax: number;
  readonly #memory: LayerMemory;
  #open: Descriptor | undefined;
  #file: Listed | undefined;
  #path = "";
  #hasReplaced = false;
  /** What the tree holds, by path without symlinks; "" is its root. */
  readonly #entries = new Map<string, Listed>([["", implicitFolder()]]);
  /** Folders as entries call them → their path without symlinks. */
  readonly #folders = new Map<string, string>([["", ""]]);
  /** Symlinks that a name went through. */
  readonly #followed = new Set<string>();

  constructor({ depthMax, entriesMax }: { depthMax: number; entriesMax: number }) {
    this.#depthMax = depthMax;
    this.#memory = new LayerMemory(entriesMax);
  }

  /** Content bytes written so far. */
  get bytes(): number {
    return this.#bytes;
  }

  get writing(): string | undefined {
    return this.#open === undefined ? undefined : this.#path;
  }

  get hasReplaced(): boolean {
    return this.#hasReplaced;
  }

  /** What the tree holds; complete after end(). */
  get entries(): Map<string, Listed> {
    return this.#entries;
  }

  /** Folders that no entry described; they should look as in the layers below. */
  get implicit(): string[] {
    return [...this.#entries].filter(([, { kind }]) => kind === "implicit").map(([path]) => path);
  }

  entry(header: TarHeader): void {
    try {
      this.#entry(header);
    } catch (error) {
      throw named(error, header.name);
    }
  }

  #entry(header: TarHeader): void {
    const trusted = header.xattrs.find(([key]) => key.startsWith("trusted."))?.[0];
    if (trusted !== undefined) {
      throw bad(`it has the attribute ${trusted}: those of trusted.* steer overlayfs`);
    }
    this.#memory.entry(header);
    const parts = this.#partsOf(header.name);
    const leaf = parts.pop();
    if (leaf === undefined) {
      if (header.type !== "5") throw bad("the root is no folder");
      this.#entries.set("", listedAs(header, this.#entries.get("")!.isOpaque));
      return;
    }
    const folder = this.#makeFolders(parts.join("/"));
    if (leaf.startsWith(whiteoutPrefix)) this.#whiteout(folder, leaf);
    else this.#create(joined(folder, leaf), header);
  }

  data(chunk: Uint8Array, position: number): void {
    if (this.#open === undefined) return;
    const file = this.#file!;
    this.#bytes += chunk.length;
    file.crc = crc32(chunk, file.crc);
    if (file.parts.length > 0) addPart(file.parts, position, chunk.length);
    try {
      writeAll(this.#open, chunk, position);
    } catch (error) {
      throw named(error, this.#path);
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
      // chown takes the setuid bit away, so the mode follows it.
      if ((file.mode & 0o7000) !== 0) fs.fchmodSync(fd, file.mode);
      setXattrs(absolute(this.#path), file);
      if (file.mtime.ns === 0 && file.mtime.s >= 0) fs.futimesSync(fd, file.mtime.s, file.mtime.s);
      else setTimes(absolute(this.#path), file.mtime);
    } catch (error) {
      throw named(error, this.#path);
    }
  }

  /** Finishes the folders; nothing may follow. */
  end(): void {
    // Owner, mode and time of folders come last: their content would change or inherit them.
    for (const [path, folder] of this.#entries) {
      try {
        describeFolder(absolute(path), folder);
      } catch (error) {
        throw named(error, path);
      }
    }
  }

  /** mkdir -p; where this layer has a symlink to a folder in the way, that is followed. */
  #makeFolders(folder: string): string {
    const known = this.#folders.get(folder);
    if (known !== undefined) return known;
    const slash = folder.lastIndexOf("/");
    const parent = slash > 0 ? this.#makeFolders(folder.slice(0, slash)) : "";
    const path = this.#makeFolder(joined(parent, folder.slice(slash + 1)));
    this.#memory.folderName(folder);
    this.#folders.set(folder, path);
    return path;
  }

  #makeFolder(path: string): string {
    const there = this.#entries.get(path);
    if (isFolder(there)) return path;
    if (there?.kind === "symlink") {
      const target = this.#resolve(path);
      if (target !== undefined) return target;
      throw bad("a symlink to what is no folder of this layer is in its way");
    }
    if (path.split("/").length > this.#depthMax) throw bad(this.#tooDeep);
    this.#memory.implicitFolder(path);
    if (there?.kind === "whiteout") fs.unlinkSync(absolute(path));
    fs.mkdirSync(absolute(path), 0o755);
    this.#entries.set(path, { ...implicitFolder(), isOpaque: there?.kind === "whiteout" });
    return path;
  }

  /** The folder of this layer that a path leads to, by its symlinks, if there is one. */
  #resolve(path: string): string | undefined {
    let at: string[] = [];
    const left = path.split("/").toReversed();
    for (let hops = 0; left.length > 0;) {
      const part = left.pop()!;
      if (part === "" || part === ".") continue;
      if (part === "..") {
        at.pop();
        continue;
      }
      const next = [...at, part].join("/");
      const there = this.#entries.get(next);
      if (there?.kind === "symlink") {
        if (++hops > symlinksMax) return undefined;
        this.#followed.add(next);
        if (there.target.startsWith("/")) at = [];
        left.push(...there.target.split("/").toReversed());
      } else if (isFolder(there)) at.push(part);
      else return undefined;
    }
    return at.join("/");
  }

  #whiteout(folder: string, leaf: string): void {
    if (leaf === opaqueMark) {
      this.#entries.get(folder)!.isOpaque = true;
      return;
    }
    if (leaf.startsWith(whiteoutPrefix + whiteoutPrefix)) return; // aufs's own files
    const name = leaf.slice(whiteoutPrefix.length);
    if (name === "" || name === "." || name === "..") throw bad("it is a whiteout of no name");
    const path = joined(folder, name);
    // It is about the layers below: what this layer has under the name stays.
    const there = this.#entries.get(path);
    if (isFolder(there)) there!.isOpaque = true;
    if (there !== undefined) return;
    markRemoved(absolute(path));
    this.#entries.set(path, { ...implicitFolder(), kind: "whiteout" });
  }

  #create(path: string, header: TarHeader): void {
    const there = this.#entries.get(path);
    const wantsFolder = header.type === "5";
    const stays = isFolder(there) && wantsFolder;
    if (there !== undefined && !stays) this.#clear(path, there);
    if (header.type === "1") {
      this.#link(path, header.link);
      return;
    }
    const isOpaque = wantsFolder && (there?.kind === "whiteout" || there?.isOpaque === true);
    const entry = listedAs(header, isOpaque);
    if (!stays) this.#make(path, header, entry);
    this.#entries.set(path, entry);
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
    const folder = this.#resolve(parts.join("/"));
    const target = joined(folder ?? "", leaf);
    const there = folder === undefined ? undefined : this.#entries.get(target);
    if (there === undefined || there.kind === "whiteout") {
      const shown = quoted(link);
      throw bad(`it is a hard link to ${shown}, which this layer does not have`);
    }
    if (isFolder(there)) throw bad("it is a hard link to a folder");
    fs.linkSync(absolute(target), absolute(path));
    this.#entries.set(path, there);
  }

  #make(path: string, header: TarHeader, entry: Listed): void {
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
        // Only a whiteout entry may hide what lies below.
        if (header.type === "3" && meansRemoved(header.major, header.minor)) {
          throw bad(`it is the device ${header.major}/${header.minor}`);
        }
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

  /** Removes what an earlier entry made. */
  #clear(path: string, there: Listed): void {
    this.#hasReplaced ||= isFolder(there) || there.kind === "file";
    if (isFolder(there) || this.#followed.delete(path)) this.#forget(path);
    this.#entries.delete(path);
    fs.rmSync(absolute(path), { recursive: isFolder(there) });
  }

  /** What is known in a folder, or behind a symlink. */
  #forget(path: string): void {
    if (++this.#replacedFolders > replacedFoldersMax) {
      throw bad(`it replaces a folder, as over ${replacedFoldersMax} before it did`);
    }
    for (const [name, real] of this.#folders) {
      if (isIn(name, path) || isIn(real, path)) this.#folders.delete(name);
    }
    for (const known of this.#entries.keys()) {
      if (isIn(known, path)) this.#entries.delete(known);
    }
  }

  #partsOf(name: string): string[] {
    if (name.includes("\0")) throw bad("its name has a NUL byte");
    const parts = name.split("/").filter((part) => part !== "" && part !== ".");
    if (parts.includes("..")) throw bad(`".." in the name ${quoted(name)}`);
    if (parts.length > this.#depthMax) throw bad(this.#tooDeep);
    return parts;
  }

  get #tooDeep(): string {
    return `it lies in more than ${this.#depthMax} folders`;
  }
}

/** Gives a folder what its entry says; others have it already. */
export function describeFolder(at: string | Buffer, listed: Listed): void {
  if (!isFolder(listed)) return;
  if (listed.isOpaque) markOpaque(at);
  if (listed.kind === "implicit") return;
  setOwnerAndMode(at, listed);
  setXattrs(at, listed);
  setTimes(at, listed.mtime);
}

function isFolder(there: Listed | undefined): boolean {
  return there?.kind === "folder" || there?.kind === "implicit";
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

function setOwnerAndMode(at: string | Buffer, { uid, gid, mode }: Listed): void {
  if (uid !== 0 || gid !== 0) fs.lchownSync(at, uid, gid);
  fs.chmodSync(at, mode);
}

/** What cannot be kept is taken from the list: it is no difference later. */
function setXattrs(at: string | Buffer, listed: Listed): void {
  for (const attribute of listed.xattrs) {
    const [name, value] = attribute;
    try {
      lsetxattr(at, name, value);
    } catch (error) {
      // A file system without such attributes, or a kind of file that takes none.
      const code = errnoOf(error);
      const isNoUse = code === "ENOTSUP" || code === "EOPNOTSUPP";
      if (!isNoUse && !(name.startsWith("user.") && code === "EPERM")) throw error;
      listed.xattrs = listed.xattrs.filter((other) => other !== attribute);
    }
  }
}

function bad(what: string): CriError {
  return new CriError("INVALID_ARGUMENT", what);
}

const refusals = /^(?:ENAMETOOLONG|ELOOP|ENOTDIR|EINVAL|EEXIST|ENOENT|ERANGE|E2BIG|EFBIG)$/;

/** With the entry's own name; an error of the kernel's that is not the layer's fault stays as it is. */
function named(error: unknown, name: string): unknown {
  const errno = errnoOf(error) ?? "";
  const isOurs = error instanceof CriError;
  if (!isOurs && !refusals.test(errno)) return error;
  const shown = quoted(name);
  const why = isOurs ? error.message : `it cannot be made (${errno})`;
  const code = isOurs ? error.code : "INVALID_ARGUMENT";
  return new CriError(code, `entry ${shown}: ${why}`, { cause: error });
}
