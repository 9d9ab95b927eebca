// What the daemon holds of the containers' streams, so that a monitor which is killed takes nothing
// with it: a reading end of each output FIFO (what an ended container wrote last stays in it until
// another monitor reads it) and the writing end of stdin (or a container that reads it meets its end).
import { constants } from "node:fs";
import { join } from "node:path";
import { errnoOf } from "../base/errors.ts";
import type { HeldStreams } from "../monitor/protocol.ts";
import { Descriptor } from "../sys/descriptor.ts";

export class StdioKeepalive {
  readonly #streams = new Map<string, { outputs: Descriptor[]; stdin: Descriptor[] }>();

  hold({ id, stdio, stdin, terminal }: HeldStreams): void {
    if (terminal || this.#streams.has(id)) return;
    const reading = constants.O_RDONLY | constants.O_NONBLOCK;
    const outputs = ["stdout", "stderr"].flatMap((name) => openIfThere(join(stdio, name), reading));
    this.#streams.set(id, { outputs, stdin: stdin ? openStdin(stdio) : [] });
  }

  /** What the container reads ends, as far as it depends on this process. */
  closeStdin(id: string): void {
    for (const stdin of this.#streams.get(id)?.stdin ?? []) stdin.close();
  }

  release(id: string): void {
    this.closeStdin(id);
    for (const output of this.#streams.get(id)?.outputs ?? []) output.close();
    this.#streams.delete(id);
  }
}

/** A writing end of what a container reads; none: it has closed that, or it was closed for good. */
export function openStdin(stdio: string): Descriptor[] {
  return openIfThere(join(stdio, "stdin"), constants.O_WRONLY | constants.O_NONBLOCK);
}

/** ENXIO: the container has closed its stdin. */
function openIfThere(path: string, flags: number): Descriptor[] {
  try {
    return [Descriptor.open(path, flags)];
  } catch (error) {
    if (errnoOf(error) === "ENOENT" || errnoOf(error) === "ENXIO") return [];
    throw error;
  }
}
