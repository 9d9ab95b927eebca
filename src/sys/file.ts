// Files: written whole or not at all, read with bounds.
import { randomBytes } from "node:crypto";
import {
  closeSync,
  constants,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { open, readFile, rename, rm, writeFile } from "node:fs/promises";
import { dirname } from "node:path";
import { errnoOf } from "../base/errors.ts";
import type { Descriptor } from "./descriptor.ts";

const modeDefault = 0o600;

/**
 * Replaces path in one step: temporary file, rename; with fsync also for a power loss. Nothing of it is
 * done on this thread: under load even a small write or rename waits for the disk's journal.
 */
export async function writeFileAtomic(
  path: string,
  data: string | Uint8Array,
  { mode = modeDefault, fsync = false }: { mode?: number; fsync?: boolean } = {},
): Promise<void> {
  const temporary = temporaryFor(path);
  try {
    await writeFile(temporary, data, { flag: "wx", mode, flush: fsync });
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
  if (fsync) await syncFile(dirname(path));
}

/**
 * The same for a file in memory (a tmpfs), done when this returns: nothing waits for a disk there, and
 * each hop to a thread pool costs more than all of it.
 */
export function replaceInMemory(path: string, data: string): void {
  const temporary = temporaryFor(path);
  try {
    writeFileSync(temporary, data, { flag: "wx", mode: modeDefault });
    renameSync(temporary, path);
  } catch (error) {
    rmSync(temporary, { force: true });
    throw error;
  }
}

function temporaryFor(path: string): string {
  return `${path}.${randomBytes(4).toString("hex")}.tmp`;
}

/** What a process that was killed amid a replacement of path has left of it. */
export function isTemporaryFor(path: string, other: string): boolean {
  return other.startsWith(path) && /^\.[0-9a-f]{8}\.tmp$/.test(other.slice(path.length));
}

/** Brings a file's content, or a folder's entries (a rename, a new file), to the disk. */
async function syncFile(path: string): Promise<void> {
  const file = await open(path, constants.O_RDONLY);
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}

/** The text of a file, or undefined where there is none. */
export async function readTextIfExists(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, "utf8");
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return undefined;
    throw error;
  }
}

/** The first bytes of a file that somebody else may have made as large as they like. */
export function readBounded(path: string, maxBytes: number): Uint8Array {
  const fd = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOCTTY);
  try {
    const buffer = Buffer.allocUnsafe(maxBytes);
    let length = 0;
    while (length < maxBytes) {
      const got = readSync(fd, buffer, length, maxBytes - length, null);
      if (got === 0) break;
      length += got;
    }
    return buffer.subarray(0, length);
  } finally {
    closeSync(fd);
  }
}

/**
 * The text of such a file, in UTF-8. fatal: bytes that are none are refused, not replaced.
 * @throws Error for one of more than bytesMax, and what the system says.
 */
export function readTextBounded(path: string, bytesMax: number, { fatal = false } = {}): string {
  const bytes = readBounded(path, bytesMax + 1);
  if (bytes.length > bytesMax) throw new Error(`is over ${bytesMax} bytes`);
  return new TextDecoder("utf-8", { fatal }).decode(bytes);
}

/** All of the bytes, however few write(2) takes at once; position: as in pwrite(2), absent: behind the last. */
export function writeAll({ fd }: Descriptor, bytes: Uint8Array, position?: number): void {
  for (let at = 0; at < bytes.length;) {
    const where = position === undefined ? null : position + at;
    at += writeSync(fd, bytes, at, bytes.length - at, where);
  }
}

/** Writes a kernel file (cgroup, sysctl, /proc) in one write(2), as the kernel wants it. */
export function writeKernelFile(path: string, value: string): void {
  const fd = openSync(path, constants.O_WRONLY);
  try {
    writeSync(fd, value);
  } finally {
    closeSync(fd);
  }
}

/**
 * The text of a kernel file (cgroup, /proc); undefined where there is none, where it has just gone, or
 * where the kernel was built or started without it.
 */
export function readKernelFile(path: string): string | undefined {
  // One call into the engine: opening, reading and closing by three takes longer than the kernel.
  return ifThere(() => readFileSync(path, "latin1"));
}

function ifThere<T>(action: () => T): T | undefined {
  try {
    return action();
  } catch (error) {
    const absent = ["ENOENT", "ENODEV", "ESRCH", "ENOTDIR", "EOPNOTSUPP", "ENOTSUP"];
    if (absent.includes(errnoOf(error) ?? "")) return undefined;
    throw error;
  }
}

/** A kernel file with figures has a few KiB at most. */
const keptBytesMax = 64 << 10;

/**
 * Kernel files that are read again and again. They stay open, since to open and close one takes many
 * times as long as the kernel needs for what it says.
 */
export class KernelFiles implements Disposable {
  readonly #max: number;
  /** Descriptors by path, by whom they belong to. */
  readonly #owners = new Map<string, Map<string, number>>();
  readonly #buffer = Buffer.allocUnsafeSlow(keptBytesMax);
  #count = 0;

  /** max: files that are kept open; those beyond it are opened for each reading. */
  constructor(max: number) {
    this.#max = max;
  }

  /** As readKernelFile, of at most 64 KiB. The file stays open until its owner's files are closed. */
  read(owner: string, path: string): string | undefined {
    const open = this.#owners.get(owner)?.get(path);
    if (open === undefined && this.#count >= this.#max) return readKernelFile(path);
    const fd = open ?? ifThere(() => this.#open(owner, path));
    if (fd === undefined) return undefined;
    const length = ifThere(() => readSync(fd, this.#buffer, 0, keptBytesMax, 0));
    if (length !== undefined) return this.#buffer.toString("latin1", 0, length);
    this.#owners.get(owner)!.delete(path);
    this.#close(fd);
    return undefined;
  }

  /** Whose files are open. */
  owners(): string[] {
    return [...this.#owners.keys()];
  }

  #open(owner: string, path: string): number {
    const fd = openSync(path, constants.O_RDONLY);
    this.#count++;
    const files = this.#owners.get(owner) ?? new Map<string, number>();
    this.#owners.set(owner, files.set(path, fd));
    return fd;
  }

  #close(fd: number): void {
    closeSync(fd);
    this.#count--;
  }

  close(owner: string): void {
    for (const fd of this.#owners.get(owner)?.values() ?? []) this.#close(fd);
    this.#owners.delete(owner);
  }

  [Symbol.dispose](): void {
    for (const owner of this.#owners.keys()) this.close(owner);
  }
}
