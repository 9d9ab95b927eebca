// Watches the descriptors of a log thread. Each belongs to one input, which gets turns and is closed once.
// Events carry the tag of their watch, so a late event never reaches another descriptor that has reused the
// number.
//
// A FIFO in which the start of a line is left is looked at again after a while: when a write(2) that is larger than
// the FIFO's room fills it and waits, the kernel reports no input, unless the FIFO was empty before.
import type { Descriptor } from "../sys/descriptor.ts";
import { Epoll, EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, Tags, wakeTag } from "../sys/epoll.ts";
import type { Turn } from "./log_lines.ts";

/** A descriptor and the work to do when it is ready. */
export type Input = {
  readonly descriptor: Descriptor;
  /** Does the work that is possible now. */
  turn(): Turn;
  /** Called for a FIFO open for writing when its reader has closed it. */
  cut?(): void;
  /** Called for a FIFO open for reading when its last writer has closed it; bytes may be left. */
  hungUp?(): void;
};

/** Consecutive turns of one input: enough to empty a FIFO. */
const maxTurns = 64;
/** Pauses between the looks at the start of a line: doubled from the first to the last. */
const firstLookMs = 1;
const lastLookMs = 2_048;

export class Inputs implements Disposable {
  readonly #epoll = new Epoll();
  readonly #tags = new Tags<Input>();
  readonly #open = new Map<Input, number>();
  /** Inputs that may have work: epoll reports each edge only once. */
  readonly #ready = new Set<Input>();
  /** Inputs with the start of a line, and the time (performance.now()) of the next look. */
  readonly #parts = new Map<Input, { lookAt: number; pauseMs: number }>();

  /** Inputs of which only the hang-up is reported. */
  readonly #muted = new Set<Input>();

  /** wake: becomes readable to make `wait` return. */
  constructor(wake: Descriptor) {
    this.#epoll.add(wake, wakeTag);
  }

  get anyReady(): boolean {
    return this.#ready.size > 0;
  }

  add(input: Input, events = EPOLLIN | EPOLLET): void {
    const tag = this.#tags.add(input);
    this.#open.set(input, tag);
    this.#epoll.add(input.descriptor, tag, events);
  }

  /** Reports only the hang-up of an input, or its input again: each write to a FIFO is an event. */
  listen(input: Input, listens: boolean): void {
    const tag = this.#open.get(input);
    if (tag === undefined || listens !== this.#muted.has(input)) return;
    if (listens) this.#muted.delete(input);
    else this.#muted.add(input);
    this.#epoll.change(input.descriptor, tag, EPOLLET | (listens ? EPOLLIN : 0));
    if (listens) this.#ready.add(input);
  }

  isOpen(input: Input): boolean {
    return this.#open.has(input);
  }

  /** Schedules further turns of an input that has stopped. */
  wake(input: Input): void {
    if (this.#open.has(input)) this.#ready.add(input);
  }

  /** Removes the descriptor from epoll explicitly: another process may keep the same file open. */
  close(input: Input): void {
    const tag = this.#open.get(input);
    if (tag === undefined) return;
    this.#open.delete(input);
    this.#tags.delete(tag);
    this.#ready.delete(input);
    this.#parts.delete(input);
    this.#muted.delete(input);
    this.#epoll.remove(input.descriptor);
    input.descriptor.close();
  }

  /** Waits up to timeoutMs (-1: for ever) for events. wakened: the wake-up was among them; any: there was an event. */
  wait(timeoutMs: number): { wakened: boolean; any: boolean } {
    const news = this.#epoll.wait(this.#untilLook(timeoutMs));
    for (const { tag, events } of news) {
      const input = this.#tags.get(tag);
      if (input === undefined) continue;
      this.#ready.add(input);
      if ((events & EPOLLERR) !== 0) input.cut?.();
      if ((events & EPOLLHUP) !== 0) input.hungUp?.();
    }
    this.#look();
    return { wakened: news.some(({ tag }) => tag === wakeTag), any: news.length > 0 };
  }

  /** Shortens a wait, so that it ends at the next look. */
  #untilLook(timeoutMs: number): number {
    const next = Math.min(...this.#parts.values().map(({ lookAt }) => lookAt));
    if (next === Infinity) return timeoutMs;
    const ms = Math.max(0, Math.ceil(next - performance.now()));
    return timeoutMs < 0 ? ms : Math.min(timeoutMs, ms);
  }

  #look(): void {
    const now = performance.now();
    for (const [input, part] of this.#parts) {
      if (part.lookAt > now) continue;
      part.pauseMs = Math.min(part.pauseMs * 2, lastLookMs);
      part.lookAt = now + part.pauseMs;
      this.#ready.add(input);
    }
  }

  /** Gives each input that may have work one turn. */
  turns(): Turn[] {
    return [...this.#ready].map((input) => this.#turn(input));
  }

  /** Gives an input turns until it has no more work; false when the bound was reached first. */
  drain(input: Input): boolean {
    for (let turns = 0; turns < maxTurns; turns++) {
      const state = this.#turn(input);
      if (state === "end" || state === "empty" || state === "part") return true;
    }
    return false;
  }

  #turn(input: Input): Turn {
    const state = this.#open.has(input) ? input.turn() : "end";
    if (state === "end") this.close(input);
    if (state === "end" || state === "empty" || state === "part") this.#ready.delete(input);
    if (state !== "part") this.#parts.delete(input);
    else if (!this.#parts.has(input)) {
      this.#parts.set(input, { lookAt: performance.now() + firstLookMs, pauseMs: firstLookMs });
    }
    return state;
  }

  [Symbol.dispose](): void {
    for (const input of this.#open.keys()) this.close(input);
    this.#epoll[Symbol.dispose]();
  }
}
