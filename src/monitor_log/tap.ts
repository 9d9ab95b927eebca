// What attached clients get of one output stream of a container: everything that comes from now on, also
// half a line, straight after it was written to the log.
//
// Decision: a client that reads slowly holds the container up, as its program's output would be by a
// terminal or a pipe, because clients depend on every byte (`kubectl run -i … | tar x`); containerd does
// the same. But one that takes nothing at all for 10 s is cut off, so no client stops a container or its
// log, and other containers never notice. A container that has ended waits for nobody.
import { errnoOf } from "../base/errors.ts";
import { writeNow, type Descriptor } from "../sys/descriptor.ts";
import type { Input } from "./inputs.ts";
import type { Turn } from "./log_lines.ts";

const stuckMs = 10_000;

/** One client's FIFO. */
export class Sink implements Input {
  readonly descriptor: Descriptor;
  #pending: Buffer[] = [];
  /** When it took something last, or something began to wait. */
  #since = 0;
  #ended = false;

  constructor(descriptor: Descriptor) {
    this.descriptor = descriptor;
  }

  get waiting(): boolean {
    return this.#pending.length > 0 && !this.done;
  }

  /** Nothing more will go through it: close it. */
  done = false;

  /** Takes data as far as there is room; keeps a copy of the rest. */
  offer(data: Buffer): void {
    if (this.done) return;
    if (!this.waiting) this.#since = performance.now();
    this.#pending.push(Buffer.from(data));
    this.turn();
  }

  /** Hands on what waits. */
  turn(): Turn {
    while (this.waiting) {
      const count = this.#write(this.#pending[0]!);
      if (count === -1) break;
      this.#since = performance.now();
      const rest = this.#pending[0]!.subarray(count);
      if (rest.length === 0) this.#pending.shift();
      else this.#pending[0] = rest;
    }
    this.done ||= this.#ended && this.#pending.length === 0;
    return "empty";
  }

  /** No more comes. */
  end(): void {
    this.#ended = true;
    this.turn();
  }

  /** The client has gone. */
  cut(): void {
    this.done = true;
  }

  cutIfStuck(): void {
    this.done ||= this.waiting && performance.now() - this.#since > stuckMs;
  }

  #write(data: Buffer): number {
    try {
      return writeNow(this.descriptor, [data]);
    } catch (error) {
      if (errnoOf(error) !== "EPIPE") throw error;
      this.done = true;
      return -1;
    }
  }
}

/** All clients of one stream. */
export class Tap {
  readonly #sinks = new Set<Sink>();
  /** Bytes of what the stream holds now that clients have had. */
  #told = 0;
  #ending = false;

  add(sink: Sink): void {
    this.#sinks.add(sink);
    if (this.#ending) sink.end();
  }

  /** A client has not taken what came last: nothing more is to be read. */
  get waiting(): boolean {
    return !this.#ending && this.#sinks.values().some((sink) => sink.waiting);
  }

  /** data: what the stream holds now, of which `taken` bytes are about to go. */
  offer(data: Buffer, taken: number): void {
    const news = data.subarray(this.#told);
    this.#told = data.length - taken;
    for (const sink of this.#sinks) {
      if (sink.done) this.#sinks.delete(sink);
      else if (news.length > 0) sink.offer(news);
    }
  }

  /** The container has ended: what is left (a FIFO full at most) is kept for slow clients. */
  ending(): void {
    this.#ending = true;
  }

  end(): void {
    for (const sink of this.#sinks) sink.end();
  }
}
