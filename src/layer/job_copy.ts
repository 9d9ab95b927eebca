// Copies an image's layers into one container root, in the unpack helper, on nodes without overlayfs. The
// trees were written by untar.ts and are hostile: symlinks are never followed.
import * as fs from "node:fs";
import { copyFile as copyWhole } from "node:fs/promises";
import { setImmediate as nextTurn } from "node:timers/promises";
import { Descriptor } from "../sys/descriptor.ts";
import { writeAll } from "../sys/file.ts";
import {
  deviceNumbers,
  lremovexattr,
  lsetxattr,
  mknod,
  setSelinuxLabel,
  setTimes,
} from "../sys/path.ts";
import { keptAttributes } from "./kept_attributes.ts";
import { nameOf, pathOf, timeFromNs } from "./tar_fields.ts";
import { isOpaque, isRemoved, opaqueMark, type Path } from "./whiteouts.ts";
import { removeTreeNow } from "../sys/remove_tree.ts";

/** Maps an image's ids 0 … count-1 to this node's, from uid and gid up; other ids map to uid and gid. */
type IdShift = { uid: number; gid: number; count: number };

export type CopyJob = {
  kind: "copy";
  /** The layers' trees, lowest first. */
  trees: string[];
  /** An existing empty folder. */
  folder: string;
  /** Absent: ids are not mapped. */
  shift?: IdShift | undefined;
  label?: string | undefined;
};

const chunkBytes = 64 << 10;
const entriesPerTurn = 200;
/** Files from this size on are copied in a thread pool, so that this process still notices a cancel. */
const largeBytes = 4n << 20n;

/** @throws ENOSPC, EDQUOT and other file system errors; a partial copy stays. */
export async function copyLayers(job: CopyJob): Promise<void> {
  for (const tree of job.trees) await new TreeCopy(tree, job).copyFolder("");
}

class TreeCopy {
  readonly #tree: string;
  readonly #job: CopyJob;
  /** Inode of a hard-linked file → its first path. */
  readonly #linked = new Map<bigint, string>();
  #entries = 0;

  constructor(tree: string, job: CopyJob) {
    this.#tree = tree;
    this.#job = job;
  }

  /** path: relative to the tree with a leading slash; "" is the root. */
  async copyFolder(path: string): Promise<void> {
    const [from, to] = [this.#from(path), this.#to(path)];
    if (isOpaque(from)) for (const name of namesIn(to)) this.#remove(`${path}/${name}`);
    for (const name of namesIn(from)) {
      // Lets the process notice the end of its input, by which the daemon cancels.
      if (++this.#entries % entriesPerTurn === 0) await nextTurn();
      if (name !== opaqueMark) await this.#entry(`${path}/${name}`);
    }
    this.#setAttributes(path, fs.lstatSync(from, { bigint: true })); // last: adding entries changes its mtime
  }

  async #entry(path: string): Promise<void> {
    const [from, to] = [this.#from(path), this.#to(path)];
    const stat = fs.lstatSync(from, { bigint: true });
    const existing = fs.lstatSync(to, { throwIfNoEntry: false });
    const stays = stat.isDirectory() && existing?.isDirectory() === true;
    if (existing !== undefined && !stays) this.#remove(path);
    if (isRemoved(stat)) return;
    if (stat.isDirectory()) {
      if (!stays) fs.mkdirSync(to, 0o700);
      return await this.copyFolder(path);
    }
    const first = this.#linked.get(stat.ino);
    if (first !== undefined) return fs.linkSync(this.#to(first), to);
    if (stat.nlink > 1n) this.#linked.set(stat.ino, path);
    if (stat.isFile()) await copyFile(from, to, stat);
    else if (stat.isSymbolicLink()) {
      fs.symlinkSync(fs.readlinkSync(from, { encoding: "buffer" }), to);
    } else {
      const { major, minor } = deviceNumbers(stat.rdev);
      mknod(to, Number(stat.mode), major, minor);
    }
    this.#setAttributes(path, stat);
  }

  #setAttributes(path: string, stat: fs.BigIntStats): void {
    const [from, to] = [this.#from(path), this.#to(path)];
    const { shift, label } = this.#job;
    const uid = shifted(Number(stat.uid), shift?.uid, shift);
    const gid = shifted(Number(stat.gid), shift?.gid, shift);
    fs.lchownSync(to, uid, gid);
    // chown clears the setuid bit, so chmod follows.
    if (!stat.isSymbolicLink()) fs.chmodSync(to, Number(stat.mode) & 0o7777);
    const attributes = new Map(keptAttributes(from));
    // Of the same folder in a layer below, or an ACL that the kernel has made of its folder's default.
    for (const [name] of keptAttributes(to)) if (!attributes.has(name)) lremovexattr(to, name);
    for (const [name, value] of attributes) {
      lsetxattr(to, name, name === "security.capability" ? this.#namespaced(value) : value);
    }
    if (label !== undefined) setSelinuxLabel(to, label);
    setTimes(to, timeFromNs(stat.mtimeNs));
  }

  /** File capabilities apply in the user namespace whose root uid they name (capabilities(7), version 3). */
  #namespaced(value: Uint8Array): Uint8Array {
    const version2Bytes = 20;
    const { shift } = this.#job;
    if (shift === undefined || value.length !== version2Bytes) return value;
    const bytes = Buffer.concat([value, Buffer.alloc(4)]);
    bytes.writeUInt8(3, 3);
    bytes.writeUInt32LE(shift.uid, version2Bytes);
    return bytes;
  }

  #remove(path: string): void {
    removeTreeNow(this.#to(path));
  }

  #from(path: string): Path {
    return pathOf(this.#tree + path);
  }

  #to(path: string): Path {
    return pathOf(this.#job.folder + path);
  }
}

function namesIn(folder: Path): string[] {
  return fs.readdirSync(folder, { encoding: "buffer" }).map((name) => nameOf(name));
}

export function shifted(id: number, first: number | undefined, shift: IdShift | undefined): number {
  if (first === undefined || shift === undefined) return id;
  return id < shift.count ? first + id : first;
}

/** Shares blocks where the file system supports it, and keeps holes. */
async function copyFile(from: Path, to: Path, stat: fs.BigIntStats): Promise<void> {
  if (stat.blocks * 512n < stat.size) return await copyChunks(from, to, stat);
  const flags = fs.constants.COPYFILE_EXCL | fs.constants.COPYFILE_FICLONE;
  if (stat.size < largeBytes) fs.copyFileSync(from, to, flags);
  else await copyWhole(from, to, flags);
}

async function copyChunks(from: Path, to: Path, { size }: fs.BigIntStats): Promise<void> {
  using source = Descriptor.open(from, fs.constants.O_RDONLY | fs.constants.O_NOFOLLOW);
  using target = Descriptor.create(to);
  const buffer = Buffer.allocUnsafe(chunkBytes);
  const zeros = Buffer.alloc(chunkBytes);
  for (let at = 0, turns = 0; ; turns++) {
    if (turns % entriesPerTurn === 0) await nextTurn();
    const length = fs.readSync(source.fd, buffer, 0, chunkBytes, at);
    if (length === 0) break;
    const chunk = buffer.subarray(0, length);
    if (!chunk.equals(zeros.subarray(0, length))) writeAll(target, chunk, at);
    at += length;
  }
  fs.ftruncateSync(target.fd, Number(size));
}
