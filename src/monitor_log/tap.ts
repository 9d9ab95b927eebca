// Copies one output stream of a container to attached clients: all output after the attach, including
// incomplete lines, right after it was written to the log.
//
// Decision: a slow client blocks the container, as a terminal or a pipe would, because clients depend on
// every byte (`kubectl run -i … | tar x`); containerd does the same. A client that takes nothing for 10 s is
// cut off, so that none can stop a container or its log for good. Other containers are not affected. A
// container that has ended waits for no client.
import { errnoOf } from "../base/errors.ts";
import { writeNow, type Descriptor } from "../sys/descriptor.ts";
import type { Input } from "./inputs.ts";
import type { Turn } from "./log_lines.ts";

const stuckMs = 10_000;

/** One client's FIFO. */
export class Sink implements Input {
  readonly descriptor: Descriptor;
  #pending: Buffer[] = [];
  /** Time of the last progress, or of the first pending byte. */
  #since = 0;
  #ended = false;

  constructor(descriptor: Descriptor) {
    this.descriptor = descriptor;
  }

  get waiting(): boolean {
    return this.#pending.length > 0 && !this.done;
  }

  /** True once the client has everything, or has disconnected: the sink is to be closed. */
  done = false;

  /** Writes as much data as the FIFO takes; keeps a copy of the rest. */
  offer(data: Buffer): void {
    if (this.done) return;
    if (!this.waiting) this.#since = performance.now();
    this.#pending.push(Buffer.from(data));
    this.turn();
  }

  /** Writes pending data. */
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

  /** Ends the output after the pending data. */
  end(): void {
    this.#ended = true;
    this.turn();
  }

  /** The client has disconnected. */
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

/** The attached clients of one stream. */
export class Tap {
  readonly #sinks = new Set<Sink>();
  /** Bytes at the start of the stream's present content that clients already have. */
  #offered = 0;
  #ending = false;

  add(sink: Sink): void {
    this.#sinks.add(sink);
    if (this.#ending) sink.end();
  }

  /** A client waits for output. */
  get isFollowed(): boolean {
    return !this.#ending && this.#sinks.values().some((sink) => !sink.done);
  }

  /** A client lags: the stream must not be read. */
  get waiting(): boolean {
    return !this.#ending && this.#sinks.values().some((sink) => sink.waiting);
  }

  /** data: the stream's present content, of which `taken` bytes are about to be discarded. */
  offer(data: Buffer, taken: number): void {
    const news = data.subarray(this.#offered);
    this.#offered = data.length - taken;
    for (const sink of this.#sinks) {
      if (sink.done) this.#sinks.delete(sink);
      else if (news.length > 0) sink.offer(news);
    }
  }

  /** The container has ended: the rest, at most a full FIFO, is buffered for slow clients. */
  ending(): void {
    this.#ending = true;
  }

  end(): void {
    for (const sink of this.#sinks) sink.end();
  }
}
