// One container's log file, and the streams it is written from.
//
// A line is taken from its stream after it was written: a FIFO's content is duplicated (tee(2)), and
// what a write has put into the log is then thrown away from the FIFO. So a monitor that is killed
// loses nothing, and at worst the next one writes a line again. A terminal cannot be duplicated: what
// was read from it and not written is held here.
//
// Decision: a program that reads its own standard output eats its log, as on a terminal.
import { constants, fstatSync, ftruncateSync, mkdirSync, readSync, writeSync } from "node:fs";
import { dirname } from "node:path";
import {
  Descriptor,
  discard,
  pipe,
  readNow,
  setPipeSize,
  tee,
  type Pipe,
  type Released,
} from "../sys/descriptor.ts";
import type { Input } from "./inputs.ts";
import { cut, LogOutput, maxLineBytes, rest, type Stream, type Turn } from "./log_lines.ts";
import { Tap, type Sink } from "./tap.ts";

/** A stream whose content is looked at before it is taken; data is valid until the next peek of any. */
type Source = { peek: () => { data: Buffer; state: Turn }; take: (bytes: number) => void };
/** stdout, stderr: absent where there is none; a terminal has one stream, stdout. */
export type LogStreams = {
  stdout?: Released | undefined;
  stderr?: Released | undefined;
  terminal: boolean;
};
type LogInput = Input & { stream: Stream; source: Source; tap: Tap };

const readBytes = 128 << 10;
/** What is looked for in a log that an earlier monitor left: the end of its last whole line. */
const tailBytes = 64 << 10;
/** Every stream passes this one buffer and this one pipe: a thread reads them one after another. */
const scratch = Buffer.allocUnsafeSlow(maxLineBytes + readBytes);
const nothing = scratch.subarray(0, 0);
const output = new LogOutput();
type Target = Descriptor | "discarded" | "not open";
let copy: (Pipe & { devNull: Descriptor }) | undefined;

function openCopy(): NonNullable<typeof copy> {
  const opened = { ...pipe(), devNull: Descriptor.open("/dev/null", constants.O_WRONLY) };
  setPipeSize(opened.writer, 1 << 20); // as many pages as a FIFO has
  return opened;
}

/** At the end of its thread. */
export function closeCopy(): void {
  copy?.[Symbol.dispose]();
  copy?.devNull.close();
  copy = undefined;
}

function fifoSource(fifo: Descriptor): Source {
  const { reader, writer, devNull } = (copy ??= openCopy());
  const peek = () => {
    const count = tee(fifo, writer, readBytes);
    for (let got = 0; got < count;) {
      const more = readNow(reader, scratch.subarray(got, count));
      // Bytes left in the one pipe would come out as another container's.
      if (more <= 0) throw new Error(`the copy of a FIFO lost ${count - got} of ${count} bytes`);
      got += more;
    }
    if (count < 0) return { data: nothing, state: "empty" as const };
    const state = count === readBytes ? ("more" as const) : ("some" as const);
    return { data: scratch.subarray(0, count), state };
  };
  return {
    peek,
    take: (bytes) => {
      discard(fifo, devNull, bytes);
    },
  };
}

function terminalSource(terminal: Descriptor): Source {
  let held = Buffer.alloc(0);
  let ended = false;
  const peek = (): ReturnType<Source["peek"]> => {
    held.copy(scratch);
    const room = scratch.subarray(held.length);
    const count = ended || room.length === 0 ? -1 : readNow(terminal, room);
    if (count > 0) held = Buffer.from(scratch.subarray(0, held.length + count));
    ended ||= count === 0;
    return { data: held, state: ended ? "end" : count > 0 ? "more" : "empty" };
  };
  return { peek, take: (bytes) => (held = held.subarray(bytes)) };
}

/** Container output in CRI's format. While the disk takes nothing, nothing is read. */
export class ContainerLog {
  readonly #path: string;
  readonly #terminal: boolean;
  /** What it is written from. */
  readonly inputs: readonly LogInput[];
  #file: Target = "not open";
  #blocked = false;

  /** resumed: an earlier monitor wrote this log, perhaps half a line at its end. */
  constructor(path: string, streams: LogStreams, resumed: boolean) {
    this.#path = path;
    this.#terminal = streams.terminal;
    this.inputs = (["stdout", "stderr"] as const).flatMap((stream) =>
      streams[stream] === undefined ? [] : [this.#input(stream, Descriptor.adopt(streams[stream]))],
    );
    try {
      if (resumed) this.#resume();
      else this.#file = openLog(path);
    } catch (error) {
      for (const { descriptor } of this.inputs) descriptor.close();
      throw error;
    }
  }

  #input(stream: Stream, descriptor: Descriptor): LogInput {
    const source = this.#terminal ? terminalSource(descriptor) : fifoSource(descriptor);
    const input: LogInput = {
      descriptor,
      stream,
      source,
      tap: new Tap(),
      turn: () => this.#turn(input),
    };
    return input;
  }

  /** What the stream brings from now on goes to the sink too; a terminal has one stream, stdout. */
  attach(stream: Stream, sink: Sink): void {
    const found = this.inputs.find((one) => one.stream === stream);
    if (found === undefined) sink.end();
    else found.tap.add(sink);
  }

  /** The container has exited: no client is waited for any more. */
  ending(): void {
    for (const { tap } of this.inputs) tap.ending();
  }

  /** The disk has refused what was read last; every turn is empty until `retry`. */
  get blocked(): boolean {
    return this.#blocked;
  }

  retry(): void {
    if (this.#file === "not open") this.#resume();
    else this.#blocked = false;
  }

  /** Writes what one stream has now. */
  #turn({ stream, source, tap }: LogInput): Turn {
    if (this.#blocked) return "empty";
    if (tap.waiting) return "empty";
    const { data, state } = source.peek();
    const used = cut(stream, data, output);
    if (used > 0 && !this.#write()) return "empty";
    tap.offer(data, used);
    if (used === 0) return state === "some" ? "empty" : state; // the start of a line
    source.take(used);
    return state === "empty" ? "more" : state;
  }

  /**
   * Writes what has no newline, when all else is written; as a partial line, so that readers add no newline
   * that nobody wrote. False when the disk refuses.
   */
  writeRest(): boolean {
    for (const { stream, source, tap } of this.inputs) {
      const { data } = source.peek();
      const used = cut(stream, data, output);
      rest(stream, data.subarray(used), output);
      if (!this.#write()) return false;
      tap.offer(data, data.length);
      source.take(data.length);
    }
    return true;
  }

  /** Before another monitor goes on: what only this one has is written. False when the disk refuses. */
  flush(): boolean {
    return !this.#terminal || (!this.#blocked && this.writeRest());
  }

  /** Bytes that no log will have; one look a page at most, for somebody may go on writing. */
  unwritten(): number {
    let bytes = 0;
    for (const { source } of this.inputs) {
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
    const file = openLog(this.#path);
    closeLog(this.#file);
    this.#file = file;
    this.#blocked = false;
  }

  close(): void {
    closeLog(this.#file);
    this.#file = "not open";
    for (const { tap } of this.inputs) tap.end();
  }

  #resume(): void {
    let file: Target = "not open";
    try {
      file = openLog(this.#path);
      endAtLine(file);
      this.#file = file;
      this.#blocked = false;
    } catch {
      closeLog(file);
      this.#blocked = true;
    }
  }

  /** All of output, or nothing of it: what is there of it is cut off again when the disk is full. */
  #write(): boolean {
    const data = output.drain();
    const file = this.#file;
    if (file === "discarded") return true;
    let written = 0;
    try {
      if (file === "not open") throw new Error("the log is not open");
      while (written < data.length) written += writeSync(file.fd, data, written);
    } catch {
      this.#blocked = true;
      if (written > 0) this.#takeBack(written);
    }
    return !this.#blocked;
  }

  /** A disk that has failed may not let it: then it is done when the log is opened anew (`retry`). */
  #takeBack(bytes: number): void {
    const file = this.#file;
    try {
      if (file instanceof Descriptor) ftruncateSync(file.fd, fstatSync(file.fd).size - bytes);
    } catch {
      closeLog(file);
      this.#file = "not open";
    }
  }
}

/** Whatever close(2) says, the descriptor is gone: NFS tells there of what it could not write. */
function closeLog(file: Target): void {
  try {
    if (file instanceof Descriptor) file.close();
  } catch {
    // Nobody else has these lines: there is nothing to write again.
  }
}

function openLog(path: string): Target {
  if (path === "") return "discarded";
  mkdirSync(dirname(path), { recursive: true });
  const flags = constants.O_RDWR | constants.O_APPEND | constants.O_CREAT;
  return Descriptor.open(path, flags, 0o640);
}

/** Cuts off what follows the last newline; what it was the start of is still in its stream. */
function endAtLine(file: Target): void {
  if (!(file instanceof Descriptor) || !fstatSync(file.fd).isFile()) return;
  const { size } = fstatSync(file.fd);
  const tail = Buffer.alloc(Math.min(size, tailBytes));
  const length = readSync(file.fd, tail, 0, tail.length, size - tail.length);
  const end = tail.subarray(0, length).lastIndexOf(10) + 1;
  if (end < length) ftruncateSync(file.fd, size - length + end);
}
