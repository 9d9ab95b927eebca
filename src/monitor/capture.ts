// What an exec writes, kept up to a bound; read on beyond it, so that the program is not held up.
import { readNow } from "../sys/descriptor.ts";
import type { Stream, Turn } from "./log_lines.ts";

/** Of an exec's output, what a flood on one stream leaves to the other. */
const reservedBytes = 1 << 20;
const buffer = Buffer.allocUnsafeSlow(256 << 10);

export class Capture {
  readonly #streams = new Map<number, Stream>();
  readonly #kept: Record<Stream, Buffer[]> = { stdout: [], stderr: [] };
  readonly #bytes: Record<Stream, number> = { stdout: 0, stderr: 0 };
  readonly #maxBytes: number;

  constructor(fds: Record<Stream, number>, maxBytes: number) {
    for (const stream of ["stdout", "stderr"] as const) this.#streams.set(fds[stream], stream);
    this.#maxBytes = maxBytes;
  }

  get fds(): number[] {
    return [...this.#streams.keys()];
  }

  turn(fd: number): Turn {
    const count = readNow(fd, buffer);
    if (count <= 0) return count < 0 ? "empty" : "end";
    const stream = this.#streams.get(fd)!;
    const others = Math.max(this.#bytes[stream === "stdout" ? "stderr" : "stdout"], reservedBytes);
    const room = Math.max(0, this.#maxBytes - others - this.#bytes[stream]);
    const kept = Math.min(count, room);
    if (kept > 0) this.#kept[stream].push(Buffer.from(buffer.subarray(0, kept)));
    this.#bytes[stream] += kept;
    return "more";
  }

  collected(): Record<Stream, Buffer> {
    return { stdout: Buffer.concat(this.#kept.stdout), stderr: Buffer.concat(this.#kept.stderr) };
  }
}
