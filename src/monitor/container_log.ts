// One container's log file, and the streams it is written from.
//
// A line is taken from its stream after it was written: a FIFO's content is duplicated (tee(2)), and
// what a write has put into the log is then thrown away from the FIFO. So a monitor that is killed
// loses nothing, and at worst the next one writes a line again. A terminal cannot be duplicated: what
// was read from it and not written is held here.
//
// Decision: a program that reads its own standard output eats its log, as on a terminal.
import {
  closeSync,
  constants,
  fstatSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readSync,
  writeSync,
} from "node:fs";
import { dirname } from "node:path";
import { discard, pipe, readNow, setPipeSize, tee } from "../sys/descriptor.ts";
import { cut, LogOutput, maxLineBytes, rest, type Stream, type Turn } from "./log_lines.ts";
import { Tap, type Sink } from "./tap.ts";

/** A stream whose content is looked at before it is taken; data is valid until the next peek of any. */
type Source = { peek: () => { data: Buffer; state: Turn }; take: (bytes: number) => void };
export type LogFds = { stdout: number; stderr: number; terminal: boolean };

const readBytes = 128 << 10;
/** What is looked for in a log that an earlier monitor left: the end of its last whole line. */
const tailBytes = 64 << 10;
/** Every stream passes this one buffer and this one pipe: a thread reads them one after another. */
const scratch = Buffer.allocUnsafeSlow(maxLineBytes + readBytes);
const nothing = scratch.subarray(0, 0);
const output = new LogOutput();
/** In place of a log's descriptor. */
const discarding = -1;
const notOpen = -2;
let copy: { readFd: number; writeFd: number; nullFd: number } | undefined;

function openCopy(): NonNullable<typeof copy> {
  const opened = { ...pipe(), nullFd: openSync("/dev/null", "w") };
  setPipeSize(opened.writeFd, 1 << 20); // as many pages as a FIFO has
  return opened;
}

function fifoSource(fd: number): Source {
  const { readFd, writeFd, nullFd } = (copy ??= openCopy());
  const peek = () => {
    const count = tee(fd, writeFd, readBytes);
    for (let got = 0; got < count;) got += readNow(readFd, scratch.subarray(got, count));
    if (count < 0) return { data: nothing, state: "empty" as const };
    const state = count === readBytes ? ("more" as const) : ("some" as const);
    return { data: scratch.subarray(0, count), state };
  };
  return { peek, take: (bytes) => void discard(fd, nullFd, bytes) };
}

function terminalSource(fd: number): Source {
  let held = Buffer.alloc(0);
  let ended = false;
  const peek = (): ReturnType<Source["peek"]> => {
    held.copy(scratch);
    const room = scratch.subarray(held.length);
    const count = ended || room.length === 0 ? -1 : readNow(fd, room);
    if (count > 0) held = Buffer.from(scratch.subarray(0, held.length + count));
    ended ||= count === 0;
    return { data: held, state: ended ? "end" : count > 0 ? "more" : "empty" };
  };
  return { peek, take: (bytes) => (held = held.subarray(bytes)) };
}

/** Container output in CRI's format. While the disk takes nothing, nothing is read. */
export class ContainerLog {
  readonly #path: string;
  readonly #sources = new Map<number, { stream: Stream; source: Source; tap: Tap }>();
  readonly #terminal: boolean;
  #fd = notOpen;
  #blocked = false;

  /** resumed: an earlier monitor wrote this log, perhaps half a line at its end. */
  constructor(path: string, fds: LogFds, resumed: boolean) {
    this.#path = path;
    this.#terminal = fds.terminal;
    if (resumed) this.#resume();
    else this.#fd = openLog(path);
    for (const stream of ["stdout", "stderr"] as const) {
      const fd = fds[stream];
      if (fd === -1) continue; // a terminal has one stream, and one that is lost none
      const source = fds.terminal ? terminalSource(fd) : fifoSource(fd);
      this.#sources.set(fd, { stream, source, tap: new Tap() });
    }
  }

  /** What the stream brings from now on goes to the sink too; a terminal has one stream, stdout. */
  attach(stream: Stream, sink: Sink): void {
    const found = this.#sources.values().find((one) => one.stream === stream);
    if (found === undefined) sink.end();
    else found.tap.add(sink);
  }

  /** The container has exited: no client is waited for any more. */
  ending(): void {
    for (const { tap } of this.#sources.values()) tap.ending();
  }

  get fds(): number[] {
    return [...this.#sources.keys()];
  }

  /** The disk has refused what was read last; every turn is empty until `retry`. */
  get blocked(): boolean {
    return this.#blocked;
  }

  retry(): void {
    if (this.#fd === notOpen) this.#resume();
    else this.#blocked = false;
  }

  /** Writes what one stream has now. */
  turn(fd: number): Turn {
    if (this.#blocked) return "empty";
    const { stream, source, tap } = this.#sources.get(fd)!;
    if (tap.waiting) return "empty";
    const { data, state } = source.peek();
    const used = cut(stream, data, output);
    if (used > 0 && !this.#write()) return "empty";
    tap.offer(data, used);
    if (used === 0) return state === "some" ? "empty" : state; // the start of a line
    source.take(used);
    return state === "empty" ? "more" : state;
  }

  /** Writes what has no newline, when all else is written. False when the disk refuses. */
  writeRest(tag: "P" | "F"): boolean {
    for (const { stream, source, tap } of this.#sources.values()) {
      const { data } = source.peek();
      const used = cut(stream, data, output);
      rest(stream, data.subarray(used), output, tag);
      if (!this.#write()) return false;
      tap.offer(data, data.length);
      source.take(data.length);
    }
    return true;
  }

  /** Before another monitor goes on: what only this one has is written. False when the disk refuses. */
  flush(): boolean {
    return !this.#terminal || (!this.#blocked && this.writeRest("P"));
  }

  /** Bytes that no log will have; one look a page at most, for somebody may go on writing. */
  unwritten(): number {
    let bytes = 0;
    for (const { source } of this.#sources.values()) {
      for (let looks = 0; looks < 256; looks++) {
        const { length } = source.peek().data;
        if (length === 0) break;
        bytes += length;
        source.take(length);
      }
    }
    return bytes;
  }

  /** The file was moved away: goes on in a new one at the same path. */
  reopen(): void {
    if (this.#path === "") return;
    const fd = openLog(this.#path);
    closeLog(this.#fd);
    this.#fd = fd;
    this.#blocked = false;
  }

  close(): void {
    closeLog(this.#fd);
    for (const { tap } of this.#sources.values()) tap.end();
  }

  #resume(): void {
    let fd = notOpen;
    try {
      fd = openLog(this.#path);
      endAtLine(fd);
      this.#fd = fd;
      this.#blocked = false;
    } catch {
      closeLog(fd);
      this.#blocked = true;
    }
  }

  /** All of output, or nothing of it: what is there of it is cut off again when the disk is full. */
  #write(): boolean {
    const data = output.drain();
    if (this.#fd === discarding) return true;
    let written = 0;
    try {
      while (written < data.length) written += writeSync(this.#fd, data, written);
    } catch {
      this.#blocked = true;
      if (written > 0) this.#takeBack(written);
    }
    return !this.#blocked;
  }

  /** A disk that has failed may not let it: then it is done when the log is opened anew (`retry`). */
  #takeBack(bytes: number): void {
    try {
      ftruncateSync(this.#fd, fstatSync(this.#fd).size - bytes);
    } catch {
      closeLog(this.#fd);
      this.#fd = notOpen;
    }
  }
}

/** Whatever close(2) says, the descriptor is gone: NFS tells there of what it could not write. */
function closeLog(fd: number): void {
  try {
    if (fd >= 0) closeSync(fd);
  } catch {
    // Nobody else has these lines: there is nothing to write again.
  }
}

function openLog(path: string): number {
  if (path === "") return discarding;
  mkdirSync(dirname(path), { recursive: true });
  return openSync(path, constants.O_RDWR | constants.O_APPEND | constants.O_CREAT, 0o640);
}

/** Cuts off what follows the last newline; what it was the start of is still in its stream. */
function endAtLine(fd: number): void {
  if (fd === discarding || !fstatSync(fd).isFile()) return;
  const { size } = fstatSync(fd);
  const tail = Buffer.alloc(Math.min(size, tailBytes));
  const length = readSync(fd, tail, 0, tail.length, size - tail.length);
  const end = tail.subarray(0, length).lastIndexOf(10) + 1;
  if (end < length) ftruncateSync(fd, size - length + end);
}
