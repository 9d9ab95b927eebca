// Watches the descriptors of a log thread: each has one owner here, an input, which takes its turns and
// is closed once. News of a descriptor comes by the tag of its watch, so news that is late never meets
// another descriptor that has the same number by now.
import type { Descriptor } from "../sys/descriptor.ts";
import { Epoll, EPOLLERR, EPOLLET, EPOLLIN, Tags, wakeTag } from "../sys/epoll.ts";
import type { Turn } from "./log_lines.ts";

/** One descriptor, and the work that it waits for. Its descriptor is the thread's until it is closed. */
export type Input = {
  readonly descriptor: Descriptor;
  /** Does what can be done now. */
  turn(): Turn;
  /** Of a FIFO that is written to: its reader has gone. */
  cut?(): void;
};

/** Turns of one input in a row: enough to empty a FIFO, and a bound. */
const maxTurns = 64;

export class Inputs implements Disposable {
  readonly #epoll = new Epoll();
  readonly #tags = new Tags<Input>();
  readonly #open = new Map<Input, number>();
  /** Those that may have something: epoll tells of what came only once. */
  readonly #ready = new Set<Input>();

  /** wake: readable when `wait` is to return for its own sake. */
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

  isOpen(input: Input): boolean {
    return this.#open.has(input);
  }

  /** It may go on where it has stopped. */
  wake(input: Input): void {
    if (this.#open.has(input)) this.#ready.add(input);
  }

  /** Removed by hand: another process may have the same file open, which would keep it in epoll. */
  close(input: Input): void {
    const tag = this.#open.get(input);
    if (tag === undefined) return;
    this.#open.delete(input);
    this.#tags.delete(tag);
    this.#ready.delete(input);
    this.#epoll.remove(input.descriptor);
    input.descriptor.close();
  }

  /** Waits up to timeoutMs (-1: for ever) for news. wakened: of the wake-up; any: at all. */
  wait(timeoutMs: number): { wakened: boolean; any: boolean } {
    const news = this.#epoll.wait(timeoutMs);
    for (const { tag, events } of news) {
      const input = this.#tags.get(tag);
      if (input === undefined) continue;
      this.#ready.add(input);
      if ((events & EPOLLERR) !== 0) input.cut?.();
    }
    return { wakened: news.some(({ tag }) => tag === wakeTag), any: news.length > 0 };
  }

  /** One turn of each that may have something. */
  turns(): Turn[] {
    return [...this.#ready].map((input) => this.#turn(input));
  }

  /** Reads what is there now; true when there was nothing more. */
  drain(input: Input): boolean {
    for (let turns = 0; turns < maxTurns; turns++) {
      const state = this.#turn(input);
      if (state === "end" || state === "empty") return true;
    }
    return false;
  }

  #turn(input: Input): Turn {
    const state = this.#open.has(input) ? input.turn() : "end";
    if (state === "end") this.close(input);
    if (state === "end" || state === "empty") this.#ready.delete(input);
    return state;
  }

  [Symbol.dispose](): void {
    for (const input of this.#open.keys()) this.close(input);
    this.#epoll[Symbol.dispose]();
  }
}
