// What the daemon holds of the containers' streams, so that a monitor which is killed takes nothing
// with it: a reading end of each output FIFO (what an ended container wrote last stays in it until
// another monitor reads it) and the writing end of stdin (or a container that reads it meets its end).
import { closeSync, constants, openSync } from "node:fs";
import { join } from "node:path";
import { errnoOf } from "../base/errors.ts";

export type HeldStreams = { id: string; stdio: string; stdin: boolean; terminal: boolean };

export class Held {
  readonly #fds = new Map<string, number[]>();

  hold({ id, stdio, stdin, terminal }: HeldStreams): void {
    if (terminal || this.#fds.has(id)) return;
    const reading = constants.O_RDONLY | constants.O_NONBLOCK;
    const fds = [openIfThere(join(stdio, "stdout"), reading)];
    fds.push(openIfThere(join(stdio, "stderr"), reading));
    if (stdin)
      fds.push(openIfThere(join(stdio, "stdin"), constants.O_WRONLY | constants.O_NONBLOCK));
    this.#fds.set(
      id,
      fds.filter((fd) => fd !== undefined),
    );
  }

  release(id: string): void {
    for (const fd of this.#fds.get(id) ?? []) closeSync(fd);
    this.#fds.delete(id);
  }

  /** Holds these and no others. */
  holdOnly(containers: HeldStreams[]): void {
    const kept = new Set(containers.map(({ id }) => id));
    for (const id of this.#fds.keys()) if (!kept.has(id)) this.release(id);
    for (const container of containers) this.hold(container);
  }
}

/** ENXIO: the container has closed its stdin. */
function openIfThere(path: string, flags: number): number | undefined {
  try {
    return openSync(path, flags);
  } catch (error) {
    if (errnoOf(error) === "ENOENT" || errnoOf(error) === "ENXIO") return undefined;
    throw error;
  }
}
