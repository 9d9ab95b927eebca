// Pipes a layer's blob through its stream processors (processor_choice.ts), in the unpack helper.
// Decision: the programs are connected by pipes, as in containerd, so that they may open /dev/stdin and
// /dev/stdout, and data between two of them does not pass through the helper. They are in the helper's
// process group, which is killed as a whole.
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
import { Descriptor, pipe, setBlocking, type Pipe } from "../sys/descriptor.ts";
import { usualPipeBytes } from "../sys/large_pipes.ts";
import { Poller } from "../sys/poller.ts";
import type { Decoding, DecodeStep } from "./processor_choice.ts";
import { usualUmask, withUmask } from "../sys/umask.ts";

const stderrBytesMax = 2048;
/** Time for a program to exit after it closed its output. */
const exitMs = 10_000;
/** Time after its exit for the stderr of its children, which may keep it open for ever. */
const drainMs = 100;

/** The running programs of one layer; they start before the chroot, which does not contain them. */
export class ProcessorChain implements AsyncDisposable {
  readonly #timeoutMs: number;
  readonly #poller = new Poller();
  readonly #programs: Program[] = [];
  #input!: ByteStream;
  #output!: ByteStream;
  /** True while the helper waits on that side. If it waits on both, the programs make no progress. */
  readonly #waits = { input: false, output: false };
  #timer: ReturnType<typeof setTimeout> | undefined;
  #failure: Error | undefined;

  private constructor(decoding: Decoding) {
    this.#timeoutMs = decoding.timeoutMs;
  }

  /** @throws CriError FAILED_PRECONDITION for a program that cannot be run. */
  static async start(decoding: Decoding): Promise<ProcessorChain> {
    const chain = new ProcessorChain(decoding);
    try {
      await chain.#start(decoding);
    } catch (error) {
      await chain[Symbol.asyncDispose]();
      throw error;
    }
    return chain;
  }

  async #start({ steps, payload }: Decoding): Promise<void> {
    const first = openPipe();
    setBlocking(first.writer, false);
    this.#input = new ByteStream(first.writer, this.#poller);
    let stdin = first.reader;
    for (const step of steps) {
      const next = openPipe();
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
    await this.#poller.writable(first.writer); // starts the poller's thread before the chroot, too
  }

  /**
   * Yields the output of the last program; reads the whole source unless a program fails.
   * @throws the source's error; CriError FAILED_PRECONDITION with the stderr of a program that failed,
   * DEADLINE_EXCEEDED when the programs make no progress for too long.
   */
  async *through(source: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
    const fed = this.#feed(source).catch((error: unknown) => this.#fail(error));
    const buffer = Buffer.allocUnsafeSlow(256 << 10);
    for (;;) {
      this.#wait("output", true);
      const count = await this.#output.read(buffer);
      this.#wait("output", false);
      if (count === 0) break;
      yield buffer.subarray(0, count); // the consumer is done with it before the next read
    }
    await this.#awaitExits();
    if (this.#failure === undefined) await fed; // the digest is computed over the whole source
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
        isWanted = false; // the program's exit gives the reason
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
      const message = `stream processor ${names}: no output for ${this.#timeoutMs} ms`;
      this.#fail(new CriError("DEADLINE_EXCEEDED", message));
    }, this.#timeoutMs);
  }

  /** Kills the programs. Their children may keep the output open, so it is closed here. */
  #fail(error: unknown): void {
    this.#failure ??= error instanceof Error ? error : new Error(messageOf(error));
    for (const program of this.#programs) program.kill();
    this.#output.close();
  }

  async #awaitExits(): Promise<void> {
    const timer = setTimeout(() => {
      const message = "a stream processor closed its output and did not exit";
      this.#fail(new CriError("DEADLINE_EXCEEDED", message));
    }, exitMs);
    await Promise.all(this.#programs.map((program) => program.ended));
    clearTimeout(timer);
    const failed = this.#programs.filter(({ exit }) => exit !== "0");
    // A program killed by SIGPIPE failed only because the next one did.
    const program = failed.find(({ exit }) => exit !== "SIGPIPE") ?? failed[0];
    if (program === undefined) return;
    const { name, exit, said } = program;
    const message = `stream processor ${name} failed (${exit}): ${said || "without a message"}`;
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

function openPipe(): Pipe {
  const ends = pipe();
  setBlocking(ends.reader, true);
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
    const extraEnv = Object.fromEntries(env.map((one) => splitOnce(one)));
    using payload = payloadFile(ends.payload);
    const stderr = openPipe();
    setBlocking(stderr.reader, false);
    const stderrStream = new ByteStream(stderr.reader, poller);
    const collected = this.#collect(stderrStream);
    try {
      const child = {
        stdio: [ends.stdin.fd, ends.stdout.fd, stderr.writer.fd, payload.fd],
        env: { ...process.env, ...extraEnv, STREAM_PROCESSOR_MEDIATYPE: mediaType },
        cwd: "/",
      };
      // The helper's own umask is 0.
      this.#child = withUmask(usualUmask, () => spawn(path, args, child));
    } catch (error) {
      stderrStream.close();
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
    this.ended = exited
      .then(() => Promise.race([collected, sleep(drainMs)]))
      .then(() => this.#takeRest(stderrStream))
      .finally(() => stderrStream.close());
  }

  async #collect(stderr: ByteStream): Promise<void> {
    for await (const chunk of stderr.chunks()) this.#keep(chunk);
  }

  /** Reads what the pipe holds: on a busy node the poller may not have told of it yet. */
  #takeRest(stderr: ByteStream): void {
    const rest = Buffer.allocUnsafeSlow(usualPipeBytes);
    const count = stderr.readNow(rest);
    if (count > 0) this.#keep(rest.subarray(0, count));
  }

  #keep(chunk: Buffer): void {
    this.#stderr = clipStart(this.#stderr + chunk.toString("utf8"), stderrBytesMax);
  }

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

/** Returns an unlinked file: unlike a pipe it needs no writer while the program reads. */
function payloadFile(base64: string): Descriptor {
  const path = join(tmpdir(), `isulad-payload-${randomBytes(8).toString("hex")}`);
  try {
    writeFileSync(path, Buffer.from(base64, "base64"), { mode: 0o600, flag: "wx" });
    return Descriptor.open(path, constants.O_RDONLY);
  } finally {
    rmSync(path, { force: true });
  }
}
