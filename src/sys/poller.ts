// Readiness of descriptors as promises, for what node's own streams cannot wait for: FIFOs, terminals,
// sockets of another network namespace, and a peer that goes while nothing is read from it.
//
// Decision: a thread of its own waits in epoll and sends descriptors' numbers, never data. Each wait is
// set anew (EPOLLONESHOT), straight from this thread: the other need not be woken for it.
import { closeSync } from "node:fs";
import { Worker } from "node:worker_threads";
import { build } from "../base/build.ts";
import {
  Epoll,
  EPOLLERR,
  EPOLLHUP,
  EPOLLIN,
  EPOLLONESHOT,
  EPOLLOUT,
  EPOLLRDHUP,
  eventfd,
  signalEventfd,
  type Ready,
} from "./descriptor.ts";

type Watched = {
  /** Tells it from an earlier descriptor of the same number, of which news may be under way. */
  tag: number;
  reader?: PromiseWithResolvers<void> | undefined;
  writer?: PromiseWithResolvers<void> | undefined;
  onHangup?: (() => void) | undefined;
};

export class Poller implements Disposable {
  readonly #epoll = new Epoll();
  readonly #endFd = eventfd();
  readonly #watched = new Map<number, Watched>();
  #worker: Worker | undefined;
  #tags = 0;

  /** Until fd may have something to read, or its end. One at a time. */
  readable(fd: number): Promise<void> {
    const watched = this.#watch(fd);
    watched.reader ??= Promise.withResolvers();
    this.#set(fd, watched);
    return watched.reader.promise;
  }

  /** Until fd may take something again, or fails. One at a time. */
  writable(fd: number): Promise<void> {
    const watched = this.#watch(fd);
    watched.writer ??= Promise.withResolvers();
    this.#set(fd, watched);
    return watched.writer.promise;
  }

  /** Calls back once when a socket's peer has gone or sends no more, also while nothing is read. */
  onHangup(fd: number, react: () => void): void {
    const watched = this.#watch(fd);
    watched.onHangup = react;
    this.#set(fd, watched);
  }

  /** Before fd is closed: whoever waits for it goes on. */
  forget(fd: number): void {
    const watched = this.#watched.get(fd);
    if (watched === undefined) return;
    this.#watched.delete(fd);
    this.#epoll.remove(fd);
    watched.reader?.resolve();
    watched.writer?.resolve();
  }

  #watch(fd: number): Watched {
    this.#worker ??= this.#start();
    const found = this.#watched.get(fd);
    if (found !== undefined) return found;
    const watched = { tag: (this.#tags = (this.#tags + 1) >>> 0) };
    this.#watched.set(fd, watched);
    this.#epoll.add(fd, EPOLLONESHOT, watched.tag);
    return watched;
  }

  #set(fd: number, { tag, reader, writer, onHangup }: Watched): void {
    const events =
      (reader === undefined ? 0 : EPOLLIN) |
      (writer === undefined ? 0 : EPOLLOUT) |
      (onHangup === undefined ? 0 : EPOLLRDHUP);
    this.#epoll.change(fd, events | EPOLLONESHOT, tag);
  }

  #start(): Worker {
    // Inside the executable a worker goes by its path from the build's root (dist/build.ts).
    const entry =
      build === undefined
        ? new URL("./poller_worker.ts", import.meta.url)
        : "./src/sys/poller_worker.ts";
    this.#epoll.add(this.#endFd);
    const workerData = { epollFd: this.#epoll.fd, endFd: this.#endFd };
    const worker = new Worker(entry, { workerData });
    worker.unref();
    worker.on("message", (ready: Ready[]) => ready.forEach((one) => this.#ready(one)));
    return worker;
  }

  #ready({ fd, events, tag }: Ready): void {
    const watched = this.#watched.get(fd);
    if (watched?.tag !== tag) return;
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
    if (waits !== undefined && this.#watched.get(fd) === watched) this.#set(fd, watched);
  }

  [Symbol.dispose](): void {
    for (const fd of this.#watched.keys()) this.forget(fd);
    const close = () => {
      closeSync(this.#epoll.fd);
      closeSync(this.#endFd);
    };
    if (this.#worker === undefined) return close();
    this.#worker.on("exit", close);
    signalEventfd(this.#endFd);
  }
}
