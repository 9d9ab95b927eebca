// Makes the FIFOs between this process and a command: one folder per client, removed once both sides have
// opened their ends.
import { constants, mkdirSync } from "node:fs";
import { randomBytes } from "node:crypto";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { errnoOf } from "../base/errors.ts";
import { ByteStream } from "../sys/byte_stream.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { mkfifo, setSelinuxLabel } from "../sys/path.ts";
import type { Poller } from "../sys/poller.ts";
import { removeTreeNow } from "../sys/remove_tree.ts";

export type StreamName = "stdin" | "stdout" | "stderr";

const readMs = 1_000;
const probeMs = 2;

export class Fifos implements Disposable {
  /** "" for a stream that was not requested. */
  readonly paths = { stdin: "", stdout: "", stderr: "" };
  /** The ends of this process. */
  readonly streams: Partial<Record<StreamName, ByteStream>> = {};
  readonly #folder: string;
  /** Opened read-write so that no end sees EOF before the other side has opened its own. */
  #keepalive: Descriptor[] = [];

  /** folder: the parent of the new folder. label: SELinux label of the container, if any. */
  constructor(
    names: StreamName[],
    { folder, poller, label }: { folder: string; poller: Poller; label?: string },
  ) {
    this.#folder = join(folder, randomBytes(8).toString("hex"));
    // With its parent: a cleaner of /run may have removed it.
    mkdirSync(this.#folder, { recursive: true, mode: 0o700 });
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
    const keepalive = Descriptor.open(path, O_RDWR | O_NONBLOCK);
    this.#keepalive.push(keepalive);
    return Descriptor.open(path, (name === "stdin" ? O_WRONLY : O_RDONLY) | O_NONBLOCK);
  }

  /** Call when the other side has opened its ends. */
  connected(): void {
    for (const keepalive of this.#keepalive.splice(0)) keepalive.close();
    removeTreeNow(this.#folder);
  }

  /**
   * Waits until the other side reads stdin; gives up after readMs, by when it may have closed it again. A shim
   * opens its end after it has started the process: what was sent before would be lost.
   */
  async stdinRead(): Promise<void> {
    const end = performance.now() + readMs;
    const { stdin } = this.streams;
    const isUnread = () => stdin?.closed === false && !hasReader(stdin.descriptor);
    while (isUnread() && performance.now() < end) await sleep(probeMs);
  }

  [Symbol.dispose](): void {
    this.connected();
    for (const stream of Object.values(this.streams)) stream.close();
  }
}

/** Opens another writing end of a FIFO, which fails with ENXIO while nobody has it open for reading. */
function hasReader({ fd }: Descriptor): boolean {
  try {
    Descriptor.open(`/proc/self/fd/${fd}`, constants.O_WRONLY | constants.O_NONBLOCK).close();
    return true;
  } catch (error) {
    if (errnoOf(error) === "ENXIO") return false;
    throw error;
  }
}
