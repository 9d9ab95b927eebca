// A container's root where layers cannot be stacked: a copy of all of them. In the unpacking helper.
// The trees are what untar.ts made, so whatever a name leads to is looked at and never followed.
import * as fs from "node:fs";
import { copyFile as copyWhole } from "node:fs/promises";
import { setImmediate as nextTurn } from "node:timers/promises";
import { Descriptor } from "../sys/descriptor.ts";
import { writeAll } from "../sys/file.ts";
import {
  deviceNumbers,
  lgetxattr,
  llistxattr,
  lsetxattr,
  mknod,
  setSelinuxLabel,
  setTimes,
} from "../sys/path.ts";
import { isKept } from "./layer_manifest.ts";
import { nameOf, pathOf } from "./tar_fields.ts";
import { isOpaque, isRemoved, opaqueMark } from "./whiteouts.ts";

/** Ids of an image from 0 to count are this node's from uid and gid up; others belong to uid and gid. */
export type IdShift = { uid: number; gid: number; count: number };

export type CopyJob = {
  kind: "copy";
  /** The layers' trees, lowest first. */
  trees: string[];
  /** Existing and empty. */
  folder: string;
  /** Absent: the node's own ids. */
  shift?: IdShift | undefined;
  /** SELinux's, for each file. */
  label?: string | undefined;
};

const chunkBytes = 64 << 10;
const entriesPerTurn = 200;
/** From here on a file is copied beside this thread, which hears meanwhile that nobody wants it. */
const largeBytes = 4n << 20n;

/** @throws ENOSPC, EDQUOT and what else the file system says; what it made by then stays. */
export async function copyLayers(job: CopyJob): Promise<void> {
  for (const tree of job.trees) await new TreeCopy(tree, job).run();
}

class TreeCopy {
  readonly #from: string;
  readonly #to: string;
  readonly #shift: IdShift | undefined;
  readonly #label: string | undefined;
  /** Inode of a file with several names → the first one's path. */
  readonly #linked = new Map<bigint, string>();
  #entries = 0;

  constructor(from: string, { folder, shift, label }: CopyJob) {
    this.#from = from;
    this.#to = folder;
    this.#shift = shift;
    this.#label = label;
  }

  async run(): Promise<void> {
    await this.#folder("");
  }

  /** path: in the tree, with a slash before it; "" is the root. */
  async #folder(path: string): Promise<void> {
    const [from, to] = [pathOf(this.#from + path), pathOf(this.#to + path)];
    if (isOpaque(from)) for (const name of namesIn(to)) this.#remove(`${path}/${name}`);
    for (const name of namesIn(from)) {
      // So that the end of our input is heard, after which nobody wants this any more.
      if (++this.#entries % entriesPerTurn === 0) await nextTurn();
      if (name !== opaqueMark) await this.#entry(`${path}/${name}`);
    }
    this.#describe(path, fs.lstatSync(from, { bigint: true })); // last: what came in has changed its time
  }

  async #entry(path: string): Promise<void> {
    const stat = fs.lstatSync(pathOf(this.#from + path), { bigint: true });
    const to = pathOf(this.#to + path);
    const there = fs.lstatSync(to, { throwIfNoEntry: false });
    const stays = stat.isDirectory() && there?.isDirectory() === true;
    if (there !== undefined && !stays) this.#remove(path);
    if (isRemoved(stat)) return;
    if (stat.isDirectory()) {
      if (!stays) fs.mkdirSync(to, 0o700);
      await this.#folder(path);
      return;
    }
    const first = this.#linked.get(stat.ino);
    if (first !== undefined) {
      fs.linkSync(pathOf(this.#to + first), to);
      return;
    }
    if (stat.nlink > 1n) this.#linked.set(stat.ino, path);
    await this.#make(path, stat);
    this.#describe(path, stat);
  }

  async #make(path: string, stat: fs.BigIntStats): Promise<void> {
    const [from, to] = [pathOf(this.#from + path), pathOf(this.#to + path)];
    if (stat.isFile()) await copyFile(from, to, stat);
    else if (stat.isSymbolicLink()) {
      fs.symlinkSync(fs.readlinkSync(from, { encoding: "buffer" }), to);
    } else {
      const { major, minor } = deviceNumbers(stat.rdev);
      mknod(to, Number(stat.mode), major, minor);
    }
  }

  #describe(path: string, stat: fs.BigIntStats): void {
    const [from, to] = [pathOf(this.#from + path), pathOf(this.#to + path)];
    const uid = shifted(Number(stat.uid), this.#shift?.uid, this.#shift);
    const gid = shifted(Number(stat.gid), this.#shift?.gid, this.#shift);
    fs.lchownSync(to, uid, gid);
    // chown takes the setuid bit away, so the mode follows it.
    if (!stat.isSymbolicLink()) fs.chmodSync(to, Number(stat.mode) & 0o7777);
    for (const name of llistxattr(from).filter(isKept)) {
      const value = lgetxattr(from, name);
      if (value === undefined) continue;
      lsetxattr(to, name, name === "security.capability" ? this.#ofNamespace(value) : value);
    }
    if (this.#label !== undefined) setSelinuxLabel(to, this.#label);
    const nsPerS = 1_000_000_000n;
    setTimes(to, { s: Number(stat.mtimeNs / nsPerS), ns: Number(stat.mtimeNs % nsPerS) });
  }

  /** Capabilities of a file count in the namespace whose root they name (capabilities(7), version 3). */
  #ofNamespace(value: Uint8Array): Uint8Array {
    const version2Bytes = 20;
    if (this.#shift === undefined || value.length !== version2Bytes) return value;
    const bytes = Buffer.concat([value, Buffer.alloc(4)]);
    bytes.writeUInt8(3, 3);
    bytes.writeUInt32LE(this.#shift.uid, version2Bytes);
    return bytes;
  }

  #remove(path: string): void {
    fs.rmSync(pathOf(this.#to + path), { recursive: true, force: true });
  }
}

function namesIn(folder: string | Buffer): string[] {
  return fs.readdirSync(folder, { encoding: "buffer" }).map((name) => nameOf(name));
}

/** The node's id of an image's. */
export function shifted(id: number, first: number | undefined, shift: IdShift | undefined): number {
  if (first === undefined || shift === undefined) return id;
  return id < shift.count ? first + id : first;
}

/** Shares the blocks where the file system can; holes stay holes. */
async function copyFile(
  from: string | Buffer,
  to: string | Buffer,
  stat: fs.BigIntStats,
): Promise<void> {
  if (stat.blocks * 512n < stat.size) return await copyChunks(from, to, stat);
  const flags = fs.constants.COPYFILE_EXCL | fs.constants.COPYFILE_FICLONE;
  if (stat.size < largeBytes) fs.copyFileSync(from, to, flags);
  else await copyWhole(from, to, flags);
}

/** Of a file with holes. */
async function copyChunks(
  from: string | Buffer,
  to: string | Buffer,
  { size }: fs.BigIntStats,
): Promise<void> {
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
