// Captures the output of an exec up to a bound, and reads on beyond it, so that the program is not blocked. The
// beginning is kept in memory; an output that is larger waits in a file (output_file.ts) for the daemon.
//
// Decision: the bound is for both streams together. Output within it is kept whole, however it is divided;
// beyond it, each stream keeps at least half of the bound, and the part of the other half that the other
// stream leaves.
import { messageOf } from "../base/errors.ts";
import { Descriptor, readNow, type Released } from "../sys/descriptor.ts";
import type { Input } from "./inputs.ts";
import type { Turn } from "./log_lines.ts";
import type { OutputFile } from "./output_file.ts";

const buffer = Buffer.allocUnsafeSlow(256 << 10);
/** Bytes of both streams together that are kept in memory. */
const memoryMax = 64 << 10;

/** Where the output lies in its file: stdout from 0 on, stderr from stderrFrom on. */
export type InFile = { stdoutBytes: number; stderrFrom: number; stderrBytes: number };
/** inFile: stdout and stderr are empty, and the file has the output. cut: why some output was not kept. */
export type Captured = {
  stdout: Uint8Array;
  stderr: Uint8Array;
  inFile?: InFile | undefined;
  cut?: string | undefined;
};

export class Capture {
  readonly stdout: Output;
  readonly stderr: Output;
  readonly #stderrFrom: number;
  #bytesMax: number;
  /** For output that is larger than memoryMax; undefined: all is kept in memory. */
  #file: OutputFile | undefined;
  #isInFile = false;
  #cut: string | undefined;

  constructor(
    streams: { stdout: Released; stderr: Released },
    bytesMax: number,
    file?: OutputFile,
  ) {
    this.#bytesMax = bytesMax;
    this.#stderrFrom = bytesMax;
    this.#file = file;
    this.stdout = new Output(streams.stdout, (bytes) =>
      this.#keep(this.stdout, this.stderr, bytes),
    );
    this.stderr = new Output(streams.stderr, (bytes) =>
      this.#keep(this.stderr, this.stdout, bytes),
    );
  }

  get inputs(): Output[] {
    return [this.stdout, this.stderr];
  }

  #keep(own: Output, other: Output, bytes: Buffer): void {
    const room = this.#bytesMax - own.length - Math.min(other.length, this.#bytesMax / 2);
    const kept = bytes.subarray(0, Math.max(0, room));
    if (kept.length > 0) this.#append(own, other, kept);
    other.cutAt(Math.max(0, this.#bytesMax - own.length));
  }

  #append(own: Output, other: Output, bytes: Buffer): void {
    try {
      if (own.length + other.length + bytes.length > memoryMax) this.#moveToFile();
      own.append(bytes);
    } catch (error) {
      // A full disk, for one. The program goes on: its exit code matters more than the end of its output.
      this.#cut = messageOf(error);
      this.#bytesMax = this.#isInFile ? own.length + other.length : memoryMax;
    }
  }

  #moveToFile(): void {
    const file = this.#file;
    if (file === undefined || this.#isInFile) return;
    this.#file = undefined; // a second attempt would fail as well
    file.create();
    try {
      for (const output of this.inputs) output.copyTo(file, this.#fromOf(output));
    } catch (error) {
      file.remove();
      throw error;
    }
    for (const output of this.inputs) output.moveTo(file, this.#fromOf(output));
    this.#isInFile = true;
    this.#file = file;
  }

  #fromOf(output: Output): number {
    return output === this.stdout ? 0 : this.#stderrFrom;
  }

  /** Returns what was kept, once: the file belongs to the caller from here on. */
  collected(): Captured {
    const cut = this.#cut === undefined ? {} : { cut: this.#cut };
    if (!this.#isInFile) return { stdout: this.stdout.kept(), stderr: this.stderr.kept(), ...cut };
    this.#file!.close();
    const [stdoutBytes, stderrBytes] = [this.stdout.length, this.stderr.length];
    const inFile = { stdoutBytes, stderrFrom: this.#stderrFrom, stderrBytes };
    return { stdout: Buffer.alloc(0), stderr: Buffer.alloc(0), inFile, ...cut };
  }
}

/** One stream of an exec. */
class Output implements Input {
  readonly descriptor: Descriptor;
  readonly #onBytes: (bytes: Buffer) => void;
  /** What is kept in memory. */
  #chunks: Buffer[] = [];
  #length = 0;
  #place: { file: OutputFile; from: number } | undefined;

  constructor(released: Released, onBytes: (bytes: Buffer) => void) {
    this.descriptor = Descriptor.adopt(released);
    this.#onBytes = onBytes;
  }

  /** Bytes kept. */
  get length(): number {
    return this.#length;
  }

  turn(): Turn {
    const count = readNow(this.descriptor, buffer);
    if (count <= 0) return count < 0 ? "empty" : "end";
    this.#onBytes(buffer.subarray(0, count));
    return "more";
  }

  /** @throws when the file cannot be written: nothing of these bytes counts as kept. */
  append(bytes: Buffer): void {
    if (bytes.length === 0) return;
    const place = this.#place;
    if (place === undefined) this.#chunks.push(Buffer.from(bytes));
    else place.file.write(bytes, place.from + this.#length);
    this.#length += bytes.length;
  }

  copyTo(file: OutputFile, from: number): void {
    file.write(this.kept(), from);
  }

  /** Appends to the file from now on, which has what was kept until now. */
  moveTo(file: OutputFile, from: number): void {
    this.#place = { file, from };
    this.#chunks = [];
  }

  /** Keeps only the first bytes. */
  cutAt(bytesMax: number): void {
    if (this.#place !== undefined) this.#length = Math.min(this.#length, bytesMax);
    while (this.#length > bytesMax) {
      const last = this.#chunks.pop()!;
      const kept = Math.max(0, last.length - (this.#length - bytesMax));
      this.#length -= last.length;
      this.append(last.subarray(0, kept));
    }
  }

  kept(): Buffer {
    return Buffer.concat(this.#chunks);
  }
}
