// Bounds the pipes of this process that are larger than usual.
//
// Decision: the pages of every pipe that root makes, and of every FIFO that it opens first, are charged to uid 0. Above
// fs.pipe-user-pages-soft (16,384 pages), the kernel gives the root of every container pipes of two pages, and lets it
// enlarge none: a program that writes 60 KiB to a filter before it reads hangs. A process with CAP_SYS_ADMIN or
// CAP_SYS_RESOURCE, as this one, is not refused, but charged all the same. So pipes have 64 KiB, as anybody's. Those that
// fill have more for as long as they do, in each process (daemon, monitor) at most an eighth of that limit.
import { readFileSync } from "node:fs";
import { pipeSize, setPipeSize, type Descriptor } from "./descriptor.ts";

/** The kernel's default. */
export const usualPipeBytes = 64 << 10;
/** fs.pipe-max-size's default. */
export const largePipeBytes = 1 << 20;
const pageBytes = 4_096;
/** fs.pipe-user-pages-soft's default. */
const usualSoftPages = 16_384;
const share = 1 / 8;

export class LargePipes {
  /** Counts the large pipes, in all threads. */
  readonly shared: SharedArrayBuffer;
  readonly #count: Int32Array;
  readonly #max: number;

  /** shared: of another thread's object; softPages: fs.pipe-user-pages-soft. */
  constructor(shared = new SharedArrayBuffer(4), softPages = readSoftPages()) {
    this.shared = shared;
    this.#count = new Int32Array(shared);
    this.#max = Math.floor((softPages * share * pageBytes) / largePipeBytes);
  }

  get count(): number {
    return this.#count[0]!;
  }

  /** Enlarges a pipe, unless there are too many large ones; true when it did. The caller gives it back. */
  enlarge(pipe: Descriptor): boolean {
    if (Atomics.add(this.#count, 0, 1) < this.#max && resize(pipe, largePipeBytes)) return true;
    Atomics.sub(this.#count, 0, 1);
    return false;
  }

  /** Counts a pipe that is large already, even if there are too many: the caller gives it back. */
  adopt(): void {
    Atomics.add(this.#count, 0, 1);
  }

  /** Makes a pipe small again; false while it holds more than fits. */
  shrink(pipe: Descriptor): boolean {
    if (!resize(pipe, usualPipeBytes)) return false;
    this.closed();
    return true;
  }

  /** A large pipe is about to be closed. */
  closed(): void {
    Atomics.sub(this.#count, 0, 1);
  }
}

/** Makes a pipe that an earlier process has enlarged small again, unless it holds more than fits. */
export function shrinkLeft(pipe: Descriptor): void {
  if (pipeSize(pipe) === largePipeBytes) resize(pipe, usualPipeBytes);
}

/** 0 means that there is no limit. */
function readSoftPages(): number {
  try {
    const pages = Number(readFileSync("/proc/sys/fs/pipe-user-pages-soft", "utf8"));
    return pages > 0 ? pages : usualSoftPages;
  } catch {
    return usualSoftPages;
  }
}

/** False where the kernel refuses: EPERM above a limit, EBUSY while the pipe holds more. */
function resize(pipe: Descriptor, bytes: number): boolean {
  try {
    setPipeSize(pipe, bytes);
    return true;
  } catch {
    return false;
  }
}
