// Runs a layer's bytes through the programs of processors.ts, in the unpacking helper.
// Decision: the programs are joined by pipes, as containerd joins them, so that they may open /dev/stdin
// and /dev/stdout, and what passes between two of them never passes through us. They are in the helper's
// process group, which ends as a whole.
import type { ChildProcess } from "node:child_process";
import { randomBytes } from "node:crypto";
import { constants, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { clipStart, printable } from "../base/text.ts";
import { ByteStream } from "../sys/byte_stream.ts";
import { spawn } from "../sys/children.ts";
import { Descriptor, pipe, setBlocking, setPipeSize, type Pipe } from "../sys/descriptor.ts";
import { Poller } from "../sys/poller.ts";
import type { Decoding, DecodeStep } from "./processors.ts";
import { usualUmask, withUmask } from "../sys/umask.ts";

const stderrBytesMax = 2048;
const pipeBytes = 1 << 20;
/** For a program to end when it has closed its output. */
const exitMs = 10_000;
/** After its end: for what it has said to arrive. */
const drainMs = 100;

/** The programs of one layer; started outside of the layer's folder, for there they lie. */
export class Decoder implements AsyncDisposable {
  readonly #timeoutMs: number;
  readonly #poller = new Poller();
  readonly #programs: Program[] = [];
  #input!: ByteStream;
  #output!: ByteStream;
  /** Both: nothing but the programs is waited for. */
  readonly #waits = { input: false, output: false };
  #timer: ReturnType<typeof setTimeout> | undefined;
  #failure: Error | undefined;

  private constructor(decoding: Decoding) {
    this.#timeoutMs = decoding.timeoutMs;
  }

  /** @throws CriError FAILED_PRECONDITION for a program that is not there. */
  static async start(decoding: Decoding): Promise<Decoder> {
    const decoder = new Decoder(decoding);
    try {
      await decoder.#start(decoding);
    } catch (error) {
      await decoder[Symbol.asyncDispose]();
      throw error;
    }
    return decoder;
  }

  async #start({ steps, payload }: Decoding): Promise<void> {
    const first = joint();
    setBlocking(first.writer, false);
    this.#input = new ByteStream(first.writer, this.#poller);
    let stdin = first.reader;
    for (const step of steps) {
      const next = joint();
      try {
        const ends = { stdin, stdout: next.writer, payload };
        this.#programs.push(new Program(step, ends, this.#poller));
      } catch (error) {
        next.reader.close();
        throw error;
      } finally {
        stdin.close();
        next.writer.close();
        stdin = next.reader;
      }
    }
    setBlocking(stdin, false);
    this.#output = new ByteStream(stdin, this.#poller);
    await Promise.all(this.#programs.map((program) => program.started));
    await this.#poller.writable(first.writer); // its thread starts outside of the layer's folder, too
  }

  /**
   * What comes out at the end; the whole source is read unless a program fails.
   * @throws the source's error; CriError FAILED_PRECONDITION with what a program that failed has said,
   * DEADLINE_EXCEEDED when nothing passes through them for too long.
   */
  async *through(source: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
    const fed = this.#feed(source).catch((error: unknown) => this.#fail(error));
    const buffer = Buffer.allocUnsafeSlow(256 << 10);
    for (;;) {
      this.#wait("output", true);
      const count = await this.#output.read(buffer);
      this.#wait("output", false);
      if (count === 0) break;
      yield buffer.subarray(0, count); // used up before the next is asked for
    }
    await this.#ended();
    if (this.#failure === undefined) await fed; // the check of what arrives needs all of it
    if (this.#failure !== undefined) throw this.#failure;
  }

  async #feed(source: AsyncIterable<Uint8Array>): Promise<void> {
    let isWanted = true;
    for await (const chunk of source) {
      if (this.#failure !== undefined) return;
      if (!isWanted) continue;
      this.#wait("input", true);
      try {
        await this.#input.send(chunk);
      } catch (error) {
        if (errnoOf(error) !== "EPIPE") throw error;
        isWanted = false; // its exit tells why
      }
      this.#wait("input", false);
    }
    this.#input.close();
    this.#wait("input", true);
  }

  #wait(part: "input" | "output", waits: boolean): void {
    this.#waits[part] = waits;
    clearTimeout(this.#timer);
    if (!this.#waits.input || !this.#waits.output) return;
    this.#timer = setTimeout(() => {
      const names = this.#programs.map(({ name }) => name).join(", ");
      const message = `stream processor ${names}: nothing came through for ${this.#timeoutMs} ms`;
      this.#fail(new CriError("DEADLINE_EXCEEDED", message));
    }, this.#timeoutMs);
  }

  /** The programs end; what they have started goes with the helper, and may hold their output until then. */
  #fail(error: unknown): void {
    this.#failure ??= error instanceof Error ? error : new Error(messageOf(error));
    for (const program of this.#programs) program.kill();
    this.#output.close();
  }

  async #ended(): Promise<void> {
    const timer = setTimeout(() => {
      const message = "a stream processor has closed its output and does not end";
      this.#fail(new CriError("DEADLINE_EXCEEDED", message));
    }, exitMs);
    await Promise.all(this.#programs.map((program) => program.ended));
    clearTimeout(timer);
    const failed = this.#programs.filter(({ exit }) => exit !== "0");
    // One that lost its reader only follows another one.
    const program = failed.find(({ exit }) => exit !== "SIGPIPE") ?? failed[0];
    if (program === undefined) return;
    const { name, exit, said } = program;
    const message = `stream processor ${name} failed (${exit}): ${said || "it said nothing"}`;
    this.#fail(new CriError("FAILED_PRECONDITION", message));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearTimeout(this.#timer);
    for (const program of this.#programs) program.kill();
    this.#input?.close();
    this.#output?.close();
    await Promise.all(this.#programs.map((program) => program.ended));
    this.#poller[Symbol.dispose]();
  }
}

function joint(): Pipe {
  const ends = pipe();
  setBlocking(ends.reader, true);
  try {
    setPipeSize(ends.writer, pipeBytes);
  } catch {
    // Above what this user may have: the usual size does.
  }
  return ends;
}

type Ends = { stdin: Descriptor; stdout: Descriptor; payload: string };

class Program {
  readonly name: string;
  readonly #path: string;
  readonly #child: ChildProcess;
  #stderr = "";
  /** Exit code or signal. */
  exit = "";
  readonly started: Promise<void>;
  readonly ended: Promise<void>;

  constructor({ name, path, args, env, mediaType }: DecodeStep, ends: Ends, poller: Poller) {
    this.name = name;
    this.#path = path;
    const more = Object.fromEntries(env.map((one) => splitOnce(one)));
    using payload = payloadFile(ends.payload);
    const stderr = joint();
    setBlocking(stderr.reader, false);
    const voice = new ByteStream(stderr.reader, poller);
    const said = this.#listen(voice);
    try {
      const child = {
        stdio: [ends.stdin.fd, ends.stdout.fd, stderr.writer.fd, payload.fd],
        env: { ...process.env, ...more, STREAM_PROCESSOR_MEDIATYPE: mediaType },
        cwd: "/",
      };
      // This process's own is 0: layers tell the modes of what it makes.
      this.#child = withUmask(usualUmask, () => spawn(path, args, child));
    } catch (error) {
      voice.close();
      throw this.#notStarted(error); // Bun throws some errors at once
    } finally {
      stderr.writer.close();
    }
    this.started = new Promise((resolve, reject) => {
      this.#child.once("spawn", resolve);
      this.#child.once("error", (error) => reject(this.#notStarted(error)));
    });
    this.started.catch(() => {});
    const exited = new Promise<void>((resolve) => {
      this.#child.once("error", () => resolve());
      this.#child.once("exit", (code, signal) => {
        this.exit = signal ?? String(code);
        resolve();
      });
    });
    // Somebody else may hold its standard error open for ever.
    this.ended = exited
      .then(() => Promise.race([said, sleep(drainMs)]))
      .finally(() => voice.close());
  }

  async #listen(stderr: ByteStream): Promise<void> {
    for await (const chunk of stderr.chunks()) {
      this.#stderr = clipStart(this.#stderr + chunk.toString("utf8"), stderrBytesMax);
    }
  }

  /** The end of its standard error. */
  get said(): string {
    return printable(this.#stderr).trim();
  }

  kill(): void {
    this.#child.kill("SIGKILL");
  }

  #notStarted(error: unknown): CriError {
    const message = `cannot run the stream processor ${this.name} (${this.#path}): ${messageOf(error)}`;
    return new CriError("FAILED_PRECONDITION", message, { cause: error });
  }
}

function splitOnce(variable: string): [string, string] {
  const at = variable.indexOf("=");
  return [variable.slice(0, at), variable.slice(at + 1)];
}

/** A file without a name: unlike a pipe it needs nobody who writes while the program reads. */
function payloadFile(base64: string): Descriptor {
  const path = join(tmpdir(), `isulad-payload-${randomBytes(8).toString("hex")}`);
  try {
    writeFileSync(path, Buffer.from(base64, "base64"), { mode: 0o600, flag: "wx" });
    return Descriptor.open(path, constants.O_RDONLY);
  } finally {
    rmSync(path, { force: true });
  }
}
