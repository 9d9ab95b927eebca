// A layer's tar stream becomes a folder that overlayfs can stack. Only ever used inside a chroot
// into that folder: names are checked here, but it is the chroot that holds against symlinks.
import * as fs from "node:fs";
import { CriError, errnoOf } from "../base/errors.ts";
import { lsetxattr, mknod } from "../sys/path.ts";
import type { TarHandler, TarHeader } from "./tar.ts";

const S_IFCHR = 0o020000;
const S_IFBLK = 0o060000;
const S_IFIFO = 0o010000;
const whiteoutPrefix = ".wh.";
const opaqueMark = ".wh..wh..opq";
const depthMax = 1000;
const implicitMax = 100_000;
const { O_CREAT, O_EXCL, O_WRONLY, O_NOFOLLOW } = fs.constants;

export class Untar implements TarHandler {
  #bytes = 0;
  #fd = -1;
  #file: TarHeader | undefined;
  #path = "";
  /** Owner, mode and time of folders come last: their content would change or inherit them. */
  readonly #folders = new Map<string, TarHeader>();
  /** Folders known to exist, so that each entry need not ask again. */
  readonly #made = new Set<string>([""]);
  readonly #implicit = new Set<string>([""]);
  readonly #opaque = new Set<string>();
  readonly #whiteouts = new Set<string>();

  constructor() {
    process.umask(0);
  }

  /** Content bytes written so far. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Folders that no entry described; they should look as in the layers below. */
  get implicit(): string[] {
    return [...this.#implicit];
  }

  entry(header: TarHeader): void {
    this.#bytes += header.size;
    const parts = partsOf(header.name);
    const leaf = parts.pop();
    const folder = parts.join("/");
    if (leaf === undefined) {
      if (header.type !== "5") throw bad(`the root is no folder`);
      this.#describe("", header);
      return;
    }
    this.#makeFolders(folder);
    if (leaf.startsWith(whiteoutPrefix)) this.#whiteout(folder, leaf);
    else this.#create(folder === "" ? leaf : `${folder}/${leaf}`, header);
  }

  data(chunk: Uint8Array): void {
    if (this.#fd < 0) return;
    for (let at = 0; at < chunk.length;) at += fs.writeSync(this.#fd, chunk, at);
  }

  entryEnd(): void {
    if (this.#fd < 0) return;
    const { uid, gid, mode, xattrs, mtime } = this.#file!;
    const fd = this.#fd;
    this.#fd = -1;
    try {
      if (uid !== 0 || gid !== 0) fs.fchownSync(fd, uid, gid);
      // chown takes the setuid bit away, so the mode follows it.
      if ((mode & 0o7000) !== 0) fs.fchmodSync(fd, mode);
      setXattrs(this.#path, xattrs);
      fs.futimesSync(fd, mtime, mtime);
    } finally {
      fs.closeSync(fd);
    }
  }

  /** Finishes the folders; nothing may follow. */
  end(): void {
    for (const folder of this.#opaque) {
      lsetxattr(absolute(folder), "trusted.overlay.opaque", Buffer.from("y"));
    }
    for (const [folder, { uid, gid, mode, mtime, xattrs }] of this.#folders) {
      const path = absolute(folder);
      if (uid !== 0 || gid !== 0) fs.lchownSync(path, uid, gid);
      fs.chmodSync(path, mode);
      setXattrs(path, xattrs);
      fs.lutimesSync(path, mtime, mtime);
    }
  }

  /** mkdir -p; where this layer has a symlink to a folder in the way, that is followed. */
  #makeFolders(folder: string): void {
    if (this.#made.has(folder)) return;
    const slash = folder.lastIndexOf("/");
    if (slash > 0) this.#makeFolders(folder.slice(0, slash));
    try {
      fs.mkdirSync(absolute(folder), 0o755);
      this.#implicit.add(folder);
      if (this.#implicit.size > implicitMax) throw bad(`over ${implicitMax} undescribed folders`);
    } catch (error) {
      if (errnoOf(error) !== "EEXIST") throw error;
      if (this.#whiteouts.delete(folder)) {
        fs.unlinkSync(absolute(folder));
        fs.mkdirSync(absolute(folder), 0o755);
        this.#opaque.add(folder);
      }
    }
    this.#made.add(folder);
  }

  /** A removed name is a character device 0/0 to overlayfs; a removed content an attribute. */
  #whiteout(folder: string, leaf: string): void {
    if (leaf === opaqueMark) {
      this.#opaque.add(folder);
      return;
    }
    if (leaf.startsWith(whiteoutPrefix + whiteoutPrefix)) return; // aufs's own files
    const name = leaf.slice(whiteoutPrefix.length);
    if (name === "" || name === "." || name === "..") throw bad(`the whiteout ${leaf}`);
    const path = folder === "" ? name : `${folder}/${name}`;
    // It is about the layers below: what this layer has under the name stays.
    const there = fs.lstatSync(absolute(path), { throwIfNoEntry: false });
    if (there?.isDirectory()) this.#opaque.add(path);
    if (there !== undefined) return;
    mknod(absolute(path), S_IFCHR, 0, 0);
    this.#whiteouts.add(path);
  }

  #create(path: string, header: TarHeader): void {
    const wasWhiteout = this.#whiteouts.delete(path);
    try {
      this.#make(path, header);
    } catch (error) {
      if (errnoOf(error) !== "EEXIST") throw explain(error, header);
      if (!this.#clear(path, header.type === "5")) this.#make(path, header);
    }
    if (header.type === "5") {
      this.#describe(path, header);
      if (wasWhiteout) this.#opaque.add(path);
    } else if (header.type !== "0" && header.type !== "1") {
      const at = absolute(path);
      if (header.uid !== 0 || header.gid !== 0) fs.lchownSync(at, header.uid, header.gid);
      if (header.type !== "2") fs.chmodSync(at, header.mode);
      setXattrs(at, header.xattrs);
      fs.lutimesSync(at, header.mtime, header.mtime);
    }
  }

  #make(path: string, header: TarHeader): void {
    const at = absolute(path);
    switch (header.type) {
      case "0":
        this.#fd = fs.openSync(at, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW, header.mode & 0o777);
        this.#file = header;
        this.#path = at;
        return;
      case "1":
        fs.linkSync(absolute(partsOf(header.link).join("/")), at);
        return;
      case "2":
        fs.symlinkSync(header.link, at);
        return;
      case "3":
      case "4":
        // Only a whiteout entry may hide what lies below.
        if (header.type === "3" && header.major === 0 && header.minor === 0) {
          throw bad(`${header.name} is the device 0/0`);
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
        throw bad(`${header.name} has the unknown type ${JSON.stringify(header.type)}`);
    }
  }

  #describe(path: string, header: TarHeader): void {
    this.#made.add(path);
    this.#implicit.delete(path);
    this.#folders.set(path, header);
  }

  /** Removes what an earlier entry made; true when it is a folder that may stay. */
  #clear(path: string, wantsFolder: boolean): boolean {
    const there = fs.lstatSync(absolute(path));
    if (there.isDirectory()) {
      if (wantsFolder) return true;
      this.#forget(path);
    } else if (this.#made.delete(path)) this.#forget(path); // a symlink that stood for a folder
    fs.rmSync(absolute(path), { recursive: true });
    return false;
  }

  #forget(path: string): void {
    for (const known of [
      this.#made,
      this.#folders,
      this.#implicit,
      this.#opaque,
      this.#whiteouts,
    ]) {
      for (const key of known.keys()) {
        if (key === path || key.startsWith(`${path}/`)) known.delete(key);
      }
    }
  }
}

function absolute(path: string): string {
  return `/${path}`;
}

function partsOf(name: string): string[] {
  if (name.includes("\0")) throw bad("a name with a NUL byte");
  const parts = name.split("/").filter((part) => part !== "" && part !== ".");
  if (parts.includes("..")) throw bad(`".." in the name ${JSON.stringify(name)}`);
  if (parts.length > depthMax) throw bad(`a name of more than ${depthMax} folders`);
  return parts;
}

/** Attributes that a container may rely on; trusted.overlay.* would steer overlayfs itself. */
function setXattrs(path: string, xattrs: TarHeader["xattrs"]): void {
  for (const [name, value] of xattrs) {
    const isUser = name.startsWith("user.") && !name.startsWith("user.overlay.");
    if (!isUser && name !== "security.capability") continue;
    try {
      lsetxattr(path, name, value);
    } catch (error) {
      // A file system without user attributes, or a kind of file that takes none.
      const code = errnoOf(error);
      if (code !== "ENOTSUP" && code !== "EOPNOTSUPP" && !(isUser && code === "EPERM")) throw error;
    }
  }
}

function explain(error: unknown, header: TarHeader): unknown {
  const code = errnoOf(error);
  if (header.type === "1" && code === "ENOENT") {
    return bad(`${header.name} is a hard link to ${header.link}, which this layer does not have`);
  }
  if (code === "ENAMETOOLONG" || code === "ELOOP" || code === "ENOTDIR" || code === "EINVAL") {
    return bad(`${JSON.stringify(header.name.slice(0, 200))} cannot be made (${code})`);
  }
  return error;
}

function bad(what: string): CriError {
  return new CriError("INVALID_ARGUMENT", `bad layer: ${what}`);
}
