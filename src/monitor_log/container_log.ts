// Writes one container's log file from its streams.
//
// A line leaves its stream only after it was written: a FIFO's content is duplicated (tee(2)), written to the
// log, and then discarded from the FIFO. A monitor that is killed therefore loses nothing; at worst the next
// one writes a line twice. A terminal's input cannot be duplicated: it is buffered here until it is written.
//
// Decision: a program that reads its own standard output takes bytes away from its log, as it would on a terminal.
import { constants, fstatSync, ftruncateSync, mkdirSync, readSync, writeSync } from "node:fs";
import { dirname } from "node:path";
import { nowMs } from "../base/clock.ts";
import { errnoOf } from "../base/errors.ts";
import {
  Descriptor,
  discard,
  isFull,
  pipe,
  readNow,
  setPipeSize,
  tee,
  type Pipe,
  type Released,
} from "../sys/descriptor.ts";
import { largePipeBytes, LargePipes } from "../sys/large_pipes.ts";
import type { Input } from "./inputs.ts";
import { DroppedOutput, type OnLogError } from "./dropped_output.ts";
import { filledBytes, LargeFifos } from "./large_fifos.ts";
import {
  cut,
  lineBytesMax,
  linesIn,
  LogOutput,
  note,
  rest,
  usualLineBytes,
  type LineFormat,
  type Stream,
  type Turn,
} from "./log_lines.ts";
import { Tap, type Sink } from "./tap.ts";

/** A stream that is peeked before it is consumed; data is valid until the next peek of any source. */
type Source = {
  peek: () => { data: Buffer; state: Turn };
  take: (bytes: number) => void;
  isFull: () => boolean;
  /** The descriptor is about to be closed. */
  close: () => void;
};
/** A terminal has one stream, stdout. */
export type LogStreams = { stdout?: Released; stderr?: Released; terminal: boolean };
/** fifos: the thread's FIFOs that have more room than usual. stallMs: a disk that is full for less time loses no output. */
export type LogParts = { events?: LogEvents; fifos?: LargeFifos; stallMs?: number };
/**
 * lineBytes: the log's limit of a line. hasReturns: a terminal, perhaps one that a shim holds, has made each "\n" into
 * "\r\n" (termios(3), ONLCR).
 */
export type LogFormat = {
  lineBytes?: number | undefined;
  hasReturns: boolean;
  /** What happens to output while the log cannot be written; "drop" if absent. */
  onError?: OnLogError | undefined;
  /** The log says how much it lacks, unless it is false. */
  hasNotes?: boolean | undefined;
};
/** failed: a write or the opening has failed; succeeded: one does after that. errno: "" when it is unknown. */
export type LogEvents = { failed: (errno: string) => void; succeeded: () => void };
const noEvents: LogEvents = { failed: () => {}, succeeded: () => {} };
/**
 * part: how many bytes of an incomplete line the last turn has left in the stream. isOpen: the last line of the stream in
 * the log is a partial one. isTorn: what followed it was dropped.
 */
type LogInput = Input & {
  stream: Stream;
  source: Source;
  tap: Tap;
  hasWriter: boolean;
  part: number;
  isOpen: boolean;
  isTorn: boolean;
};

/** More than a line may have: only what is read at once shows a line's end. */
const readBytes = 128 << 10;
/** Bytes at a log's end in which the last newline of an earlier monitor is searched. */
const tailBytes = 128 << 10;
const newline = 10;
/** Shared by all streams, because a thread reads them one after another. */
const scratch = Buffer.allocUnsafeSlow(lineBytesMax + readBytes);
const nothing = scratch.subarray(0, 0);
const output = new LogOutput();
type Target = Descriptor | "discarded" | "not open";
let copy: (Pipe & { devNull: Descriptor }) | undefined;

function openCopy(): NonNullable<typeof copy> {
  const opened = { ...pipe(), devNull: Descriptor.open("/dev/null", constants.O_WRONLY) };
  setPipeSize(opened.writer, largePipeBytes); // as many pages as a FIFO has
  return opened;
}

/** Closes the shared descriptors at the end of the thread. */
export function closeCopy(): void {
  copy?.[Symbol.dispose]();
  copy?.devNull.close();
  copy = undefined;
}

function fifoSource(fifo: Descriptor, fifos: LargeFifos): Source {
  const { reader, writer, devNull } = (copy ??= openCopy());
  const peek = () => {
    const count = tee(fifo, writer, readBytes);
    for (let got = 0; got < count;) {
      const more = readNow(reader, scratch.subarray(got, count));
      // Bytes left in the shared pipe would be read as another container's.
      if (more <= 0) throw new Error(`the copy of a FIFO lost ${count - got} of ${count} bytes`);
      got += more;
    }
    if (count < 0) return { data: nothing, state: "empty" as const };
    // A pause to gather more would have the writer wait for room.
    const state = count >= filledBytes ? ("more" as const) : ("some" as const);
    if (state === "more") fifos.filled(fifo, count, performance.now());
    return { data: scratch.subarray(0, count), state };
  };
  const take = (bytes: number) => discard(fifo, devNull, bytes);
  return { peek, take, isFull: () => isFull(fifo), close: () => fifos.close(fifo) };
}

function terminalSource(terminal: Descriptor): Source {
  let buffered = Buffer.alloc(0);
  let ended = false;
  const peek = (): ReturnType<Source["peek"]> => {
    buffered.copy(scratch);
    const room = scratch.subarray(buffered.length);
    const count = ended || room.length === 0 ? -1 : readNow(terminal, room);
    if (count > 0) buffered = Buffer.from(scratch.subarray(0, buffered.length + count));
    ended ||= count === 0;
    return { data: buffered, state: ended ? "end" : count > 0 ? "more" : "empty" };
  };
  const take = (bytes: number) => (buffered = buffered.subarray(bytes));
  return { peek, take, isFull: () => false, close: () => {} };
}

/** Writes container output in CRI's format. While the disk refuses writes, output waits in its streams, or is dropped. */
export class ContainerLog {
  readonly #path: string;
  readonly #terminal: boolean;
  readonly #format: Omit<LineFormat, "stream">;
  readonly inputs: readonly LogInput[];
  readonly #events: LogEvents;
  readonly #fifos: LargeFifos;
  readonly #dropped: DroppedOutput;
  readonly #hasNotes: boolean;
  #file: Target = "not open";
  #blocked = false;
  /** The last write or opening has failed. */
  #isFailing = false;

  /** resumed: an earlier monitor wrote this log, perhaps half a line at its end. */
  constructor(
    path: string,
    streams: LogStreams & LogFormat,
    resumed: boolean,
    { events = noEvents, fifos = new LargeFifos(new LargePipes()), stallMs }: LogParts = {},
  ) {
    this.#path = path;
    this.#events = events;
    this.#fifos = fifos;
    this.#terminal = streams.terminal;
    const { lineBytes = usualLineBytes, hasReturns, onError = "drop", hasNotes = true } = streams;
    this.#dropped = new DroppedOutput(onError, stallMs);
    this.#hasNotes = hasNotes;
    this.#format = { lineBytes, hasReturns };
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
    const source = this.#terminal
      ? terminalSource(descriptor)
      : fifoSource(descriptor, this.#fifos);
    if (!this.#terminal) this.#fifos.resume(descriptor, performance.now());
    const input: LogInput = {
      descriptor,
      stream,
      source,
      tap: new Tap(),
      turn: () => this.#turn(input),
      hungUp: () => (input.hasWriter = false),
      hasWriter: true,
      part: 0,
      isOpen: false,
      isTorn: false,
    };
    return input;
  }

  /** Copies the stream's further output to the sink; a terminal has one stream, stdout. */
  attach(stream: Stream, sink: Sink): void {
    const found = this.inputs.find((one) => one.stream === stream);
    if (found === undefined) sink.end();
    else found.tap.add(sink);
  }

  /** The container has exited: slow clients no longer block its streams. */
  ending(): void {
    for (const { tap } of this.inputs) tap.ending();
  }

  /** True if some stream has a writer, which may write more. */
  get hasWriter(): boolean {
    return this.inputs.some(({ hasWriter }) => hasWriter);
  }

  /** The disk has refused the last write; every turn is empty until `retry`. */
  get blocked(): boolean {
    return this.#blocked;
  }

  /** The disk refuses, and output is not kept for it any more. */
  get isDropping(): boolean {
    return this.#blocked && this.#dropped.isDue(performance.now());
  }

  /** A client is attached. */
  get isFollowed(): boolean {
    return this.inputs.some(({ tap }) => tap.isFollowed);
  }

  /** What an operator has to know; undefined: the log has always been written. */
  get trouble():
    | { path: string; droppedBytes: number; failure: DroppedOutput["failure"] }
    | undefined {
    const { bytes: droppedBytes, failure } = this.#dropped;
    if (droppedBytes === 0 && failure === undefined) return undefined;
    return { path: this.#path, droppedBytes, failure };
  }

  retry(): void {
    if (this.#file === "not open") this.#resume();
    else this.#blocked = false;
  }

  /** Writes the present content of one stream. */
  #turn(input: LogInput): Turn {
    const { stream, source, tap } = input;
    if (tap.waiting) return "empty";
    if (this.#blocked || !this.#writeNotes()) return tap.isFollowed ? this.#pass(input) : "empty";
    const { data, state } = source.peek();
    let used = this.#cut(stream, data);
    if (used === 0 && data.length > 0 && data.length === input.part && isStuck(input)) {
      rest(stream, data, output);
      used = data.length;
    }
    if (used > 0) used = this.#writeFrom(input, data, used);
    input.part = data.length - used;
    tap.offer(data, used);
    source.take(used);
    if (this.#blocked) return "empty";
    if (used === 0) return data.length > 0 && state !== "end" ? "part" : state;
    return state === "empty" ? "more" : state;
  }

  #cut(stream: Stream, data: Buffer, linesMax?: number): number {
    return cut({ stream, ...this.#format }, data, output, linesMax);
  }

  /**
   * Writes `output`, made of the first `used` bytes of data. Returns how many of them are written, in whole lines: all,
   * unless the disk refuses.
   */
  #writeFrom(input: LogInput, data: Buffer, used: number): number {
    const lines = this.#write();
    let written = used;
    if (this.#blocked) {
      written = lines === 0 ? 0 : this.#cut(input.stream, data, lines);
      output.drain();
    }
    if (written > 0) input.isOpen = data[written - 1] !== newline;
    return written;
  }

  /** Discards what waits in the streams; attached clients get it before. */
  drop(): void {
    for (const input of this.inputs) {
      if (input.descriptor.isOpen && !input.tap.waiting) this.#pass(input);
    }
  }

  /** Gives attached clients what the log does not take, and drops it where that is due. */
  #pass(input: LogInput): Turn {
    const { source, tap } = input;
    const { data, state } = source.peek();
    const used = this.#dropped.isDue(performance.now()) ? this.#droppable(input, data) : 0;
    this.#dropped.add(used, linesIn(data.subarray(0, used)), nowMs());
    if (used > 0) input.isTorn ||= input.isOpen;
    input.part = data.length - used;
    tap.offer(data, used);
    source.take(used);
    if (data.length === 0) return state === "end" ? "end" : "empty";
    return used > 0 ? "more" : "part";
  }

  /** The bytes of whole lines at the start of data, or of a line that is too long to wait for its end. */
  #droppable(input: LogInput, data: Buffer): number {
    const end = data.lastIndexOf(newline) + 1;
    if (end > 0) return end;
    const isLong = data.length > this.#format.lineBytes;
    const isUnchanged = data.length > 0 && data.length === input.part;
    return isLong || (isUnchanged && isStuck(input)) ? data.length : 0;
  }

  /** Ends lines whose rest was dropped, and says how much was; false when the disk refuses. */
  #writeNotes(): boolean {
    if (this.#dropped.unsaidBytes === 0) return true;
    for (const input of this.inputs) {
      if (!input.isTorn) continue;
      note(input.stream, "", output);
      this.#write();
      if (this.#blocked) return false;
      input.isTorn = input.isOpen = false;
    }
    if (this.#hasNotes) note("stderr", this.#dropped.note()!, output);
    this.#write();
    if (!this.#blocked) this.#dropped.said();
    return !this.#blocked;
  }

  /** Writes the rest as a partial line: readers add no newline to it. False when the disk refuses. */
  writeRest(): boolean {
    if (this.#blocked || !this.#writeNotes()) return false;
    for (const input of this.inputs) {
      const { stream, source, tap } = input;
      const { data } = source.peek();
      const used = this.#cut(stream, data);
      rest(stream, data.subarray(used), output);
      const written = this.#writeFrom(input, data, data.length);
      tap.offer(data, written);
      source.take(written);
      if (this.#blocked) return false;
    }
    return true;
  }

  /** Writes what only this process buffers, before another monitor continues. False when the disk refuses. */
  flush(): boolean {
    return !this.#terminal || this.isDropping || this.writeRest();
  }

  /**
   * Discards and counts the bytes that the log neither has nor tells of; bounded, because another process may go on
   * writing.
   */
  unwritten(): number {
    for (const { source } of this.inputs) {
      for (let peeks = 0; peeks < 256; peeks++) {
        const { data } = source.peek();
        if (data.length === 0) break;
        this.#dropped.add(data.length, linesIn(data), nowMs());
        source.take(data.length);
      }
    }
    return this.#dropped.unsaidBytes;
  }

  /** Continues in a new file at the same path, after a rotation has moved the old one. */
  reopen(): void {
    if (this.#path === "") return;
    const file = openLog(this.#path);
    closeLog(this.#file);
    this.#file = file;
    this.#blocked = false;
  }

  /** Call it before the inputs' descriptors are closed. */
  close(): void {
    closeLog(this.#file);
    this.#file = "not open";
    for (const { tap, source } of this.inputs) {
      tap.end();
      source.close();
    }
  }

  #resume(): void {
    let file: Target = "not open";
    try {
      file = openLog(this.#path);
      endAtLine(file);
      this.#file = file;
      this.#blocked = false;
      this.#succeeded();
    } catch (error) {
      closeLog(file);
      this.#failed(error);
    }
  }

  #failed(error: unknown): void {
    this.#blocked = true;
    this.#isFailing = true;
    const errno = errnoOf(error) ?? "";
    this.#dropped.failed(errno, performance.now());
    this.#events.failed(errno);
  }

  #succeeded(): void {
    if (!this.#isFailing) return;
    this.#isFailing = false;
    this.#events.succeeded();
  }

  /**
   * Writes `output`, all of it unless the disk refuses; returns the number of whole lines written then. They stay: a
   * write that is taken back and tried again would fill the same blocks again and again.
   */
  #write(): number {
    const data = output.drain();
    const file = this.#file;
    let written = 0;
    try {
      if (file === "not open") throw new Error("the log is not open");
      if (file === "discarded") return 0;
      while (written < data.length) written += writeSync(file.fd, data, written);
    } catch (error) {
      const lines = this.#endAtLine(data.subarray(0, written));
      this.#failed(error);
      return lines;
    }
    if (data.length > 0) {
      this.#dropped.wrote();
      this.#succeeded();
    }
    return 0;
  }

  /**
   * Takes the incomplete line at the end of what was written back; returns the number of whole lines. Where a failing
   * disk refuses that, reopening the log does it (`retry`).
   */
  #endAtLine(written: Buffer): number {
    const file = this.#file;
    const end = written.lastIndexOf(newline) + 1;
    try {
      if (end < written.length && file instanceof Descriptor) {
        ftruncateSync(file.fd, fstatSync(file.fd).size - (written.length - end));
      }
    } catch {
      closeLog(file);
      this.#file = "not open";
    }
    return linesIn(written.subarray(0, end));
  }
}

/**
 * True where the start of a line fills the FIFO, so that the line can never end there: a program can make the
 * FIFO smaller, and splice(2) or O_DIRECT take a page of it for each piece.
 */
function isStuck({ hasWriter, source }: LogInput): boolean {
  return hasWriter && source.isFull();
}

/** Closes the log; ignores close(2)'s errors, by which NFS reports failed writes. */
function closeLog(file: Target): void {
  try {
    if (file instanceof Descriptor) file.close();
  } catch {
    // The lines have left their stream and cannot be written again.
  }
}

const { O_RDWR, O_APPEND, O_CREAT, O_NOFOLLOW, O_NONBLOCK } = constants;
/**
 * A pod with a volume of the logs' folder may put anything in a log's place: a symlink would have its lines written to a
 * file of the node, and a FIFO that nobody reads would hold up all logs of this thread.
 */
const logFlags = O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK;

function openLog(path: string): Target {
  if (path === "") return "discarded";
  mkdirSync(dirname(path), { recursive: true });
  return Descriptor.open(path, logFlags, 0o640);
}

/** Truncates a log after its last newline; the incomplete line is still in its stream. */
function endAtLine(file: Target): void {
  if (!(file instanceof Descriptor) || !fstatSync(file.fd).isFile()) return;
  const { size } = fstatSync(file.fd);
  const tail = Buffer.alloc(Math.min(size, tailBytes));
  const length = readSync(file.fd, tail, 0, tail.length, size - tail.length);
  const end = tail.subarray(0, length).lastIndexOf(newline) + 1;
  if (end < length) ftruncateSync(file.fd, size - length + end);
}
