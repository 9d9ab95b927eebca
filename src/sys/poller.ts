// Reports the readiness of descriptors as promises, where node's streams cannot: FIFOs, terminals, sockets of
// another network namespace, and a peer that disconnects while nothing is read from it.
//
// Decision: a separate thread waits in epoll and sends the tags of watches, never data. Each wait is armed
// anew (EPOLLONESHOT) by this thread, which does not need to wake the other one for it.
import type { Worker } from "node:worker_threads";
import { eventfd, signalEventfd, type Descriptor } from "./descriptor.ts";
import {
  Epoll,
  EPOLLERR,
  EPOLLHUP,
  EPOLLIN,
  EPOLLONESHOT,
  EPOLLOUT,
  EPOLLRDHUP,
  Tags,
  wakeTag,
  type Ready,
} from "./epoll.ts";
import { startWorker } from "./worker.ts";

type Watched = {
  readonly descriptor: Descriptor;
  tag: number;
  reader?: PromiseWithResolvers<void> | undefined;
  writer?: PromiseWithResolvers<void> | undefined;
  onHangup?: (() => void) | undefined;
};

export class Poller implements Disposable {
  readonly #epoll = new Epoll();
  readonly #end = eventfd();
  readonly #watched = new Map<Descriptor, Watched>();
  readonly #tags = new Tags<Watched>();
  #worker: Worker | undefined;

  /** Waits until the descriptor may have input, or has ended. One caller at a time. */
  readable(descriptor: Descriptor): Promise<void> {
    const watched = this.#watch(descriptor);
    watched.reader ??= Promise.withResolvers();
    this.#set(watched);
    return watched.reader.promise;
  }

  /** Waits until the descriptor may take output, or fails. One caller at a time. */
  writable(descriptor: Descriptor): Promise<void> {
    const watched = this.#watch(descriptor);
    watched.writer ??= Promise.withResolvers();
    this.#set(watched);
    return watched.writer.promise;
  }

  /** Calls back once when a socket's peer closes or half-closes, even while nothing is read, or this side closes it. */
  onHangup(descriptor: Descriptor, react: () => void): void {
    const watched = this.#watch(descriptor);
    watched.onHangup = react;
    this.#set(watched);
  }

  /** Removes a descriptor before it is closed, and wakes its waiters. */
  forget(descriptor: Descriptor): void {
    const watched = this.#watched.get(descriptor);
    if (watched === undefined) return;
    this.#watched.delete(descriptor);
    this.#tags.delete(watched.tag);
    this.#epoll.remove(descriptor);
    watched.reader?.resolve();
    watched.writer?.resolve();
    watched.onHangup?.();
  }

  #watch(descriptor: Descriptor): Watched {
    this.#worker ??= this.#start();
    const found = this.#watched.get(descriptor);
    if (found !== undefined) return found;
    const watched: Watched = { descriptor, tag: wakeTag };
    watched.tag = this.#tags.add(watched);
    this.#watched.set(descriptor, watched);
    this.#epoll.add(descriptor, watched.tag, EPOLLONESHOT);
    return watched;
  }

  #set({ descriptor, tag, reader, writer, onHangup }: Watched): void {
    const events =
      (reader === undefined ? 0 : EPOLLIN) |
      (writer === undefined ? 0 : EPOLLOUT) |
      (onHangup === undefined ? 0 : EPOLLRDHUP);
    this.#epoll.change(descriptor, tag, events | EPOLLONESHOT);
  }

  #start(): Worker {
    this.#epoll.add(this.#end, wakeTag);
    const worker = startWorker("sys/poller_worker.ts", { epoll: this.#epoll.share() });
    worker.unref();
    worker.on("message", (ready: Ready[]) => ready.forEach((one) => this.#ready(one)));
    return worker;
  }

  #ready({ events, tag }: Ready): void {
    const watched = this.#tags.get(tag);
    if (watched === undefined) return;
    const { reader, writer, onHangup } = watched;
    const gone = (events & (EPOLLERR | EPOLLHUP)) !== 0;
    if (gone || (events & (EPOLLIN | EPOLLRDHUP)) !== 0) {
      watched.reader = undefined;
      reader?.resolve();
    }
    if (gone || (events & EPOLLOUT) !== 0) {
      watched.writer = undefined;
      writer?.resolve();
    }
    if (gone || (events & EPOLLRDHUP) !== 0) {
      watched.onHangup = undefined;
      onHangup?.();
    }
    const waits = watched.reader ?? watched.writer ?? watched.onHangup;
    if (waits !== undefined && this.#tags.get(tag) === watched) this.#set(watched);
  }

  [Symbol.dispose](): void {
    for (const descriptor of this.#watched.keys()) this.forget(descriptor);
    const close = () => {
      this.#epoll[Symbol.dispose]();
      this.#end.close();
    };
    if (this.#worker === undefined) return close();
    this.#worker.on("exit", close);
    signalEventfd(this.#end);
  }
}
