// Keeps the containers' streams open in the daemon, so that none breaks when the monitor is killed: a reading
// end of each output FIFO (the last output of an ended container stays in it for the next monitor) and the
// writing end of stdin (without it the container would read an end of file). A shim's container with a
// terminal has such FIFOs too.
import { constants } from "node:fs";
import { join } from "node:path";
import { errnoOf } from "../base/errors.ts";
import type { HeldStreams } from "../monitor/protocol.ts";
import { Descriptor } from "../sys/descriptor.ts";

export class StdioKeepalive {
  readonly #streams = new Map<string, { outputs: Descriptor[]; stdin: Descriptor[] }>();

  /** terminal: the monitor holds it, and there are no FIFOs. */
  hold({ id, stdio, stdin, terminal }: HeldStreams): void {
    if (terminal || this.#streams.has(id)) return;
    const reading = constants.O_RDONLY | constants.O_NONBLOCK;
    const outputs = ["stdout", "stderr"].flatMap((name) => openIfThere(join(stdio, name), reading));
    this.#streams.set(id, { outputs, stdin: stdin ? openStdin(stdio) : [] });
  }

  /** Closes this process's end; stdin ends when the monitor has closed its own. */
  closeStdin(id: string): void {
    for (const stdin of this.#streams.get(id)?.stdin ?? []) stdin.close();
  }

  release(id: string): void {
    this.closeStdin(id);
    for (const output of this.#streams.get(id)?.outputs ?? []) output.close();
    this.#streams.delete(id);
  }
}

/** Opens a writing end of a container's stdin; none where the container has closed it or it was removed. */
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
