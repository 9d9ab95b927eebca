// Watches many descriptors for readiness (epoll(7)).
import { errnoOf } from "../base/errors.ts";
import { Descriptor, type Released } from "./descriptor.ts";
import { check, O_CLOEXEC } from "./libc.ts";

/** epoll(7)'s events; ERR and HUP are always reported. */
export const EPOLLIN = 0x1;
/** A kernel file has changed since it was read. */
export const EPOLLPRI = 0x2;
export const EPOLLOUT = 0x4;
export const EPOLLERR = 0x8;
export const EPOLLHUP = 0x10;
/** A socket's peer has closed or half-closed the connection. */
export const EPOLLRDHUP = 0x2000;
/** Edge-triggered. */
export const EPOLLET = 0x80000000;
/** Reports one event, then none until the watch is armed again. */
export const EPOLLONESHOT = 0x40000000;

const EPOLL_CTL_ADD = 1;
const EPOLL_CTL_DEL = 2;
const EPOLL_CTL_MOD = 3;

/** tag: identifies the watch; a descriptor's number may have been reused. */
export type Ready = { tag: number; events: number };

/** The tag of the owner's wake-up; `Tags` never assigns it. */
export const wakeTag = 0;

/** Gives each watch a tag that no other watch has. */
export class Tags<Watch> {
  readonly #watches = new Map<number, Watch>();
  #last = wakeTag;

  add(watch: Watch): number {
    do this.#last = (this.#last + 1) >>> 0;
    while (this.#last === wakeTag || this.#watches.has(this.#last));
    this.#watches.set(this.#last, watch);
    return this.#last;
  }

  /** undefined: the watch was removed after the event was reported. */
  get(tag: number): Watch | undefined {
    return this.#watches.get(tag);
  }

  delete(tag: number): void {
    this.#watches.delete(tag);
  }
}

/** Size of struct epoll_event, and where its data is; the structure is packed on x86-64 only. */
export function epollEvent(arch: string): { bytes: number; dataAt: number } {
  return arch === "x64" ? { bytes: 12, dataAt: 4 } : { bytes: 16, dataAt: 8 };
}

export class Epoll implements Disposable {
  readonly #epoll: Descriptor;
  readonly #event = epollEvent(process.arch);
  readonly #events = new Uint8Array(16 * 64);
  readonly #view = new DataView(this.#events.buffer);

  /** epoll: a handle that another thread has made. */
  constructor(epoll = new Descriptor(check("epoll_create1", "", O_CLOEXEC))) {
    this.#epoll = epoll;
  }

  /** Returns another handle of this epoll, for another thread. */
  share(): Released {
    return this.#epoll.duplicate().release();
  }

  /** Watches a descriptor, by default for input, edge-triggered. tag: identifies this watch, 32 bits. */
  add(watched: Descriptor, tag: number, events = EPOLLIN | EPOLLET): void {
    this.#control(EPOLL_CTL_ADD, watched, { events, tag });
  }

  /** Changes the events of a watched descriptor. */
  change(watched: Descriptor, tag: number, events: number): void {
    this.#control(EPOLL_CTL_MOD, watched, { events, tag });
  }

  remove(watched: Descriptor): void {
    this.#control(EPOLL_CTL_DEL, watched, { events: 0, tag: 0 });
  }

  #control(operation: number, { fd }: Descriptor, { events, tag }: Ready): void {
    const event = new Uint8Array(16);
    const view = new DataView(event.buffer);
    view.setUint32(0, events >>> 0, true);
    view.setUint32(this.#event.dataAt, tag, true);
    check("epoll_ctl", `descriptor ${fd}`, this.#epoll.fd, operation, fd, event);
  }

  /** Waits up to timeoutMs (-1: for ever) for ready watches; returns at most 64. */
  wait(timeoutMs: number): Ready[] {
    let count: number;
    try {
      count = check("epoll_wait", "", this.#epoll.fd, this.#events, 64, timeoutMs);
    } catch (error) {
      if (errnoOf(error) === "EINTR") return [];
      throw error;
    }
    const ready: Ready[] = [];
    for (let i = 0; i < count; i++) {
      const at = i * this.#event.bytes;
      const events = this.#view.getUint32(at, true);
      ready.push({ tag: this.#view.getUint32(at + this.#event.dataAt, true), events });
    }
    return ready;
  }

  [Symbol.dispose](): void {
    this.#epoll.close();
  }
}
