// FIFOs between this process and one that the monitor gives the other end to: a folder for each stream's
// client, gone from the disk as soon as both sides have theirs open.
import { constants, mkdirSync, rmSync } from "node:fs";
import { randomBytes } from "node:crypto";
import { join } from "node:path";
import { ByteStream } from "../sys/byte_stream.ts";
import { Descriptor, setPipeSize } from "../sys/descriptor.ts";
import { mkfifo, setSelinuxLabel } from "../sys/path.ts";
import type { Poller } from "../sys/poller.ts";

export type StreamName = "stdin" | "stdout" | "stderr";

const fifoBytes = 256 << 10;

export class Fifos implements Disposable {
  /** Of each FIFO; "" where none was asked for. */
  readonly paths = { stdin: "", stdout: "", stderr: "" };
  /** Our ends. */
  readonly streams: Partial<Record<StreamName, ByteStream>> = {};
  readonly #folder: string;
  /** Open both ways until the other side has its ends: before, ours would meet their end. */
  #kept: Descriptor[] = [];

  /** folder: where a folder of these is made. label: SELinux's of what uses them, where it has one. */
  constructor(
    names: StreamName[],
    { folder, poller, label }: { folder: string; poller: Poller; label?: string },
  ) {
    this.#folder = join(folder, randomBytes(8).toString("hex"));
    mkdirSync(this.#folder, { mode: 0o700 });
    try {
      for (const name of names)
        this.streams[name] = new ByteStream(this.#open(name, label), poller);
    } catch (error) {
      this[Symbol.dispose]();
      throw error;
    }
  }

  #open(name: StreamName, label: string | undefined): Descriptor {
    const path = join(this.#folder, name);
    mkfifo(path, 0o600);
    if (label !== undefined) setSelinuxLabel(path, label);
    this.paths[name] = path;
    const { O_RDWR, O_WRONLY, O_RDONLY, O_NONBLOCK } = constants;
    const kept = Descriptor.open(path, O_RDWR | O_NONBLOCK);
    this.#kept.push(kept);
    setPipeSize(kept, fifoBytes);
    return Descriptor.open(path, (name === "stdin" ? O_WRONLY : O_RDONLY) | O_NONBLOCK);
  }

  /** The other side has its ends. */
  connected(): void {
    for (const kept of this.#kept.splice(0)) kept.close();
    rmSync(this.#folder, { recursive: true, force: true });
  }

  [Symbol.dispose](): void {
    this.connected();
    for (const stream of Object.values(this.streams)) stream.close();
  }
}
