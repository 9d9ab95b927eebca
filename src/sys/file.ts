// Writes files atomically, reads them with bounds, and reads and writes kernel files (cgroup, sysctl, /proc).
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
import { Descriptor } from "./descriptor.ts";

const modeDefault = 0o600;

/**
 * Replaces a file atomically: temporary file, rename; with fsync also across a power loss. Works on the
 * thread pool: under load even a small write or rename waits for the disk's journal.
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

/** Replaces a file on a tmpfs, synchronously: no disk blocks it, and a thread pool would cost more time. */
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

/** Returns a new name, in the same folder, for a file that will replace path. */
export function temporaryFor(path: string): string {
  return `${path}.${randomBytes(4).toString("hex")}.tmp`;
}

/** True for the temporary file that a process left when it was killed while it replaced path. */
export function isTemporaryFor(path: string, other: string): boolean {
  return other.startsWith(path) && /^\.[0-9a-f]{8}\.tmp$/.test(other.slice(path.length));
}

/** Flushes a file's content, or a folder's entries (a rename, a new file), to the disk. */
async function syncFile(path: string): Promise<void> {
  const file = await open(path, constants.O_RDONLY);
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}

/** Reads a text file; undefined where there is none. */
export async function readTextIfExists(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, "utf8");
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return undefined;
    throw error;
  }
}

/** Reads the end of a text file; undefined where there is no file. */
export async function readTextEnd(path: string, bytesMax: number): Promise<string | undefined> {
  try {
    await using file = await open(path);
    const { size } = await file.stat();
    const start = Math.max(0, size - bytesMax);
    const buffer = Buffer.alloc(size - start);
    const { bytesRead } = await file.read(buffer, 0, buffer.length, start);
    return buffer.toString("utf8", 0, bytesRead);
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return undefined;
    throw error;
  }
}

/** Reads at most maxBytes, of a file whose size is not under this program's control. */
export function readBounded(path: string, maxBytes: number): Uint8Array {
  const { O_RDONLY, O_NONBLOCK, O_NOCTTY } = constants;
  using file = Descriptor.open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  const buffer = Buffer.allocUnsafe(maxBytes);
  let length = 0;
  while (length < maxBytes) {
    const got = readSync(file.fd, buffer, length, maxBytes - length, null);
    if (got === 0) break;
    length += got;
  }
  return buffer.subarray(0, length);
}

/**
 * Reads a UTF-8 file of bounded size. fatal: invalid bytes are refused instead of replaced.
 * @throws for a file over bytesMax, and the errors of open(2) and read(2).
 */
export function readTextBounded(path: string, bytesMax: number, { fatal = false } = {}): string {
  const bytes = readBounded(path, bytesMax + 1);
  if (bytes.length > bytesMax) throw new Error(`is over ${bytesMax} bytes`);
  return new TextDecoder("utf-8", { fatal }).decode(bytes);
}

/** Writes all bytes; position: as in pwrite(2), absent: the descriptor's own. */
export function writeAll({ fd }: Descriptor, bytes: Uint8Array, position?: number): void {
  for (let at = 0; at < bytes.length;) {
    const where = position === undefined ? null : position + at;
    at += writeSync(fd, bytes, at, bytes.length - at, where);
  }
}

/** Writes a kernel file (cgroup, sysctl, /proc) in one write(2), as the kernel wants it. */
export function writeKernelFile(path: string, value: string): void {
  using file = Descriptor.open(path, constants.O_WRONLY);
  writeSync(file.fd, value);
}

/**
 * Reads a kernel file (cgroup, /proc); undefined where there is none, where it was just removed, or where the
 * kernel was built or booted without it.
 */
export function readKernelFile(path: string): string | undefined {
  // One call into the engine: three, for open, read and close, take longer than the kernel's work.
  return ifThere(() => readFileSync(path, "latin1"));
}

/** Returns a number by its name from the text of a file such as /proc/PID/status (proc(5)), in the file's unit. */
export function kernelFigure(text: string | undefined, name: string): number | undefined {
  const digits = new RegExp(`^${name}:\\s+(\\d+)`, "m").exec(text ?? "")?.[1];
  return digits === undefined ? undefined : Number(digits);
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

/** Kernel files with counters have a few KiB at most. */
const keptBytesMax = 64 << 10;

/** Keeps frequently read kernel files open: opening and closing one takes many times as long as reading it. */
export class KernelFiles implements Disposable {
  readonly #max: number;
  /** Owner → path → descriptor. */
  readonly #owners = new Map<string, Map<string, number>>();
  readonly #buffer = Buffer.allocUnsafeSlow(keptBytesMax);
  #count = 0;

  /** max: files kept open; any others are opened for each read. */
  constructor(max: number) {
    this.#max = max;
  }

  /** Like readKernelFile, up to 64 KiB. The file stays open until its owner's files are closed. */
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

  /** The owners of open files. */
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
