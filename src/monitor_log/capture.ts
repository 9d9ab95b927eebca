// Captures the output of an exec up to a bound, and reads on beyond it, so that the program is not blocked.
//
// Decision: the bound is for both streams together. Output within it is kept whole, however it is divided;
// beyond it, each stream keeps at least half of the bound, and the part of the other half that the other
// stream leaves.
import { Descriptor, readNow, type Released } from "../sys/descriptor.ts";
import type { Input } from "./inputs.ts";
import type { Turn } from "./log_lines.ts";

const buffer = Buffer.allocUnsafeSlow(256 << 10);

export class Capture {
  readonly stdout: Output;
  readonly stderr: Output;
  readonly #bytesMax: number;

  constructor(streams: { stdout: Released; stderr: Released }, bytesMax: number) {
    this.#bytesMax = bytesMax;
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
    own.append(bytes.subarray(0, Math.max(0, room)));
    other.cutAt(this.#bytesMax - own.length);
  }

  collected(): { stdout: Buffer; stderr: Buffer } {
    return { stdout: this.stdout.kept(), stderr: this.stderr.kept() };
  }
}

/** One stream of an exec. */
class Output implements Input {
  readonly descriptor: Descriptor;
  readonly #onBytes: (bytes: Buffer) => void;
  #chunks: Buffer[] = [];
  #length = 0;

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

  append(bytes: Buffer): void {
    if (bytes.length === 0) return;
    this.#chunks.push(Buffer.from(bytes));
    this.#length += bytes.length;
  }

  /** Keeps only the first bytes. */
  cutAt(bytesMax: number): void {
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
