// Gives a program pipes as standard input, output and error, and moves what goes through them.
// Decision: the engine would give it sockets, which cannot be opened by path: `cat /dev/stdin` and
// `echo >/dev/stderr`, as in CNI plugins, verifiers and credential helpers that are shell scripts, would fail.
// The engine could wait for these pipes only in a thread, so a timer serves them: most programs end before the timer
// fires for the first time.
import { setTimeout as sleep } from "node:timers/promises";
import { errnoOf } from "../base/errors.ts";
import {
  hasHungUp,
  pipe,
  readNow,
  setBlocking,
  unreadBytes,
  writeNow,
  type Descriptor,
  type Pipe,
} from "./descriptor.ts";
import { LargePipes, usualPipeBytes } from "./large_pipes.ts";

const largePipes = new LargePipes();

type Options = {
  input: Uint8Array | undefined;
  /** Bytes of each output that are kept. */
  bytesMax: number;
  /** Called when an output has this many. */
  floodBytes: number;
  onFlood: () => void;
};

const firstLookMs = 5;
const looksMsMax = 100;
/** Grace between the exit and the end of the outputs, which a grandchild may keep open. */
const drainMs = 100;

export class ProgramPipes implements Disposable {
  readonly #pipes = new DisposableStack();
  readonly #input: Input | undefined;
  readonly #outputs: Output[] = [];
  readonly #childEnds: Descriptor[] = [];
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** @throws pipe(2)'s errors. */
  constructor({ input, ...limits }: Options) {
    try {
      if (input !== undefined) this.#input = this.#feed(input);
      for (let count = 0; count < 2; count++) this.#outputs.push(this.#collect(limits));
    } catch (error) {
      this[Symbol.dispose]();
      throw error;
    }
  }

  #feed(input: Uint8Array): Input {
    const { reader, writer } = this.#pipe(({ reader }) => reader);
    setBlocking(reader, true);
    setBlocking(writer, false);
    if (input.length > usualPipeBytes) this.#enlarge(writer);
    return new Input(writer, input);
  }

  #collect(limits: Omit<Options, "input">): Output {
    const { reader } = this.#pipe(({ writer }) => writer);
    let isLarge = false;
    return new Output(reader, { ...limits, onFull: () => (isLarge ||= this.#enlarge(reader)) });
  }

  #enlarge(pipe: Descriptor): boolean {
    const isLarge = largePipes.enlarge(pipe);
    if (isLarge) this.#pipes.defer(() => largePipes.closed());
    return isLarge;
  }

  #pipe(childEnd: (made: Pipe) => Descriptor): Pipe {
    const made = this.#pipes.use(pipe());
    this.#childEnds.push(childEnd(made));
    return made;
  }

  /** The program's descriptors 0 to 2, for spawn(). */
  get stdio(): (number | "ignore")[] {
    const fds = this.#childEnds.map(({ fd }) => fd);
    return this.#input === undefined ? ["ignore", ...fds] : fds;
  }

  /** Begins, once the program has its ends. */
  begin(): void {
    for (const end of this.#childEnds) end.close();
    this.#look(firstLookMs);
  }

  #look(waitMs: number): void {
    const isBusy = this.#move();
    const next = isBusy ? firstLookMs : Math.min(waitMs * 2, looksMsMax);
    this.#timer = setTimeout(() => this.#look(next), waitMs);
  }

  /** Returns true if anything was moved. */
  #move(): boolean {
    const fed = this.#input?.write() ?? false;
    return this.#outputs.map((output) => output.read()).some(Boolean) || fed;
  }

  /** Returns what the program wrote to standard output and error; call it after its exit. */
  async outputs(): Promise<Buffer[]> {
    const end = performance.now() + drainMs;
    for (;;) {
      this.#move();
      if (this.#outputs.every(({ isOver }) => isOver) || performance.now() > end) break;
      await sleep(firstLookMs);
    }
    return this.#outputs.map(({ bytes }) => bytes);
  }

  [Symbol.dispose](): void {
    clearTimeout(this.#timer);
    this.#pipes[Symbol.dispose]();
  }
}

class Input {
  readonly #writer: Descriptor;
  #left: Uint8Array;

  constructor(writer: Descriptor, bytes: Uint8Array) {
    this.#writer = writer;
    this.#left = bytes;
  }

  /** Writes what the pipe takes, then closes it. */
  write(): boolean {
    if (!this.#writer.isOpen) return false;
    const count = this.#left.length === 0 ? 0 : this.#writeNow();
    this.#left = this.#left.subarray(Math.max(count, 0));
    if (this.#left.length === 0) this.#writer.close();
    return count >= 0;
  }

  #writeNow(): number {
    try {
      return writeNow(this.#writer, [this.#left]);
    } catch (error) {
      if (errnoOf(error) !== "EPIPE") throw error;
      return this.#left.length; // The program does not read its input; its exit code counts.
    }
  }
}

/** onFull: as much waits as fits into a pipe of the usual size. */
type OutputOptions = Omit<Options, "input"> & { onFull: () => void };

class Output {
  readonly #reader: Descriptor;
  readonly #limits: OutputOptions;
  readonly #chunks: Buffer[] = [];
  #length = 0;

  constructor(reader: Descriptor, limits: OutputOptions) {
    this.#reader = reader;
    this.#limits = limits;
  }

  /** No process can write any more, and all is read. */
  get isOver(): boolean {
    return hasHungUp(this.#reader) && unreadBytes(this.#reader) === 0;
  }

  get bytes(): Buffer {
    return Buffer.concat(this.#chunks);
  }

  /** Reads what there is now, once: a program may write for ever. */
  read(): boolean {
    const waiting = unreadBytes(this.#reader);
    if (waiting === 0) return false;
    const { bytesMax, floodBytes, onFlood, onFull } = this.#limits;
    if (waiting === usualPipeBytes) onFull();
    const buffer = Buffer.allocUnsafe(waiting);
    const count = readNow(this.#reader, buffer);
    if (this.#length < bytesMax) {
      this.#chunks.push(buffer.subarray(0, Math.min(count, bytesMax - this.#length)));
    }
    this.#length += count;
    if (this.#length >= floodBytes) onFlood();
    return true;
  }
}
