// Keeps an exec's output in a file, which the daemon reads, and removes. All files together are bounded.
import { mkdirSync, rmSync } from "node:fs";
import { dirname } from "node:path";
import { Descriptor } from "../sys/descriptor.ts";
import { writeAll } from "../sys/file.ts";

/** Bytes of all files that are being written. */
const totalMax = 1 << 30;
/**
 * Each file may take this part of what the others leave: sixty outputs of 16 MiB are kept whole, and there is always
 * room for another.
 */
const share = 1 / 8;
let total = 0;

export class OutputFile {
  readonly #path: string;
  #descriptor: Descriptor | undefined;
  #bytes = 0;

  constructor(path: string) {
    this.#path = path;
  }

  /** @throws the errors of mkdir(2) and open(2). */
  create(): void {
    mkdirSync(dirname(this.#path), { recursive: true, mode: 0o700 });
    this.#descriptor = Descriptor.create(this.#path);
  }

  /** @throws the errors of write(2), and for an output that exceeds its share of the bound. */
  write(bytes: Uint8Array, position: number): void {
    const left = totalMax - (total - this.#bytes);
    if (this.#bytes + bytes.length > left * share) {
      throw new Error(`the outputs of execs have taken ${total} of at most ${totalMax} bytes`);
    }
    this.#bytes += bytes.length;
    total += bytes.length;
    writeAll(this.#descriptor!, bytes, position);
  }

  close(): void {
    total -= this.#bytes;
    this.#bytes = 0;
    this.#descriptor?.close();
  }

  remove(): void {
    this.close();
    rmSync(this.#path, { force: true });
  }
}
