// Gives FIFOs that containers keep full more room, which saves most of the waits of a container that writes much, and
// takes the room back when they are quiet.
import { pipeSize, type Descriptor } from "../sys/descriptor.ts";
import { largePipeBytes, usualPipeBytes, type LargePipes } from "../sys/large_pipes.ts";

/** More than this in a FIFO of the usual size means that its writer waits, or soon does. */
export const filledBytes = usualPipeBytes / 2;
/** A FIFO that has had no more than fits into a usual one for this long becomes one again. */
const quietMs = 2_000;

export class LargeFifos {
  readonly #pipes: LargePipes;
  /** The last times (performance.now()) at which they were filled. */
  readonly #filledAt = new Map<Descriptor, number>();

  constructor(pipes: LargePipes) {
    this.#pipes = pipes;
  }

  /** Counts a FIFO that an earlier monitor has enlarged. */
  resume(fifo: Descriptor, now: number): void {
    if (pipeSize(fifo) !== largePipeBytes) return;
    this.#pipes.adopt();
    this.#filledAt.set(fifo, now);
  }

  /** bytes: more than filledBytes were in the FIFO. */
  filled(fifo: Descriptor, bytes: number, now: number): void {
    const isLarge = this.#filledAt.has(fifo);
    if (isLarge ? bytes > usualPipeBytes : this.#mayGrow(fifo)) this.#filledAt.set(fifo, now);
  }

  /** Not a FIFO that its program has resized. */
  #mayGrow(fifo: Descriptor): boolean {
    return pipeSize(fifo) === usualPipeBytes && this.#pipes.enlarge(fifo);
  }

  /** Takes the room of quiet FIFOs back. Returns the milliseconds until the next look; undefined: none is large. */
  shrink(now: number): number | undefined {
    for (const [fifo, filledAt] of this.#filledAt) {
      if (now - filledAt < quietMs) continue;
      if (this.#pipes.shrink(fifo)) this.#filledAt.delete(fifo);
      else this.#filledAt.set(fifo, now);
    }
    return this.#filledAt.size > 0 ? quietMs : undefined;
  }

  /** A FIFO is about to be closed; others may keep it open. */
  close(fifo: Descriptor): void {
    if (!this.#filledAt.delete(fifo)) return;
    if (!this.#pipes.shrink(fifo)) this.#pipes.closed();
  }
}
