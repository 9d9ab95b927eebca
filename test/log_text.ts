// Reads container logs and daemon logs for tests.
import { closeSync, fstatSync, openSync, readSync, statSync } from "node:fs";

/** Returns a container's output: its log without time, stream and tag, with partial lines joined. */
export function logText(log: string): string {
  return log.replaceAll(/^\S+ (?:stdout|stderr) ([PF]) (.*)\n/gm, (_, tag: string, text: string) =>
    tag === "F" ? `${text}\n` : text,
  );
}

/** Returns the last bytes of a file as text. */
export function lastBytes(path: string, count: number): string {
  const bytes = Buffer.alloc(count);
  const fd = openSync(path, "r");
  try {
    const from = Math.max(0, fstatSync(fd).size - count);
    return bytes.toString("utf8", 0, readSync(fd, bytes, 0, count, from));
  } finally {
    closeSync(fd);
  }
}

/** Reads what is appended to a file from now on; the file may not exist yet, and may be truncated. */
export class AddedText {
  readonly #path: string;
  readonly #from: number;

  constructor(path: string) {
    this.#path = path;
    this.#from = this.#size;
  }

  get #size(): number {
    return statSync(this.#path, { throwIfNoEntry: false })?.size ?? 0;
  }

  get text(): string {
    const size = this.#size;
    const from = size < this.#from ? 0 : this.#from;
    if (size === from) return "";
    const bytes = Buffer.alloc(size - from);
    const fd = openSync(this.#path, "r");
    try {
      return bytes.toString("utf8", 0, readSync(fd, bytes, 0, bytes.length, from));
    } finally {
      closeSync(fd);
    }
  }
}
