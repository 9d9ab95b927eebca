// Pipes, readiness and the flags of open descriptors.
import { check, failure, libc, O_CLOEXEC, O_NONBLOCK } from "./libc.ts";

/** Sets a FIFO's or pipe's capacity in bytes; the kernel may refuse (EPERM above its limit). */
export function setPipeSize(fd: number, bytes: number): void {
  const F_SETPIPE_SZ = 1031;
  check("fcntl", `F_SETPIPE_SZ on descriptor ${fd}`, fd, F_SETPIPE_SZ, bytes);
}

const F_SETFL = 4;
const SPLICE_F_NONBLOCK = 2;

/** An anonymous pipe, both ends closed on exec, the reading end not blocking. */
export function pipe(): { readFd: number; writeFd: number } {
  const fds = new Int32Array(2);
  check("pipe2", "", new Uint8Array(fds.buffer), O_CLOEXEC);
  check("fcntl", "O_NONBLOCK", fds[0]!, F_SETFL, O_NONBLOCK);
  return { readFd: fds[0]!, writeFd: fds[1]! };
}

/** Of one end of a pipe: whoever else has this same end shares it. */
export function setBlocking(fd: number, blocks: boolean): void {
  check("fcntl", `F_SETFL on descriptor ${fd}`, fd, F_SETFL, blocks ? 0 : O_NONBLOCK);
}

/** Bytes read into buffer; -1 when there is nothing now (EAGAIN), 0 at the end (of a terminal: EIO). */
export function readNow(fd: number, buffer: Uint8Array): number {
  const { call, errno } = libc();
  for (;;) {
    const count = Number(call.read(fd, buffer, buffer.length));
    if (count >= 0) return count;
    const number = errno[0]!;
    if (number === 11) return -1; // EAGAIN
    if (number === 5) return 0; // EIO
    if (number !== 4) throw failure("read", number, `descriptor ${fd}`); // EINTR
  }
}

/**
 * Writes the parts one behind another as far as the descriptor takes them now (at most 64 parts); -1 when
 * it takes nothing (EAGAIN). @throws EPIPE, ECONNRESET when nobody reads any more.
 */
export function writeNow(fd: number, parts: readonly Uint8Array[]): number {
  const { call, errno, address } = libc();
  const vectors = new BigUint64Array(parts.length * 2);
  parts.forEach((part, index) => {
    vectors[index * 2] = part.length === 0 ? 0n : address(part);
    vectors[index * 2 + 1] = BigInt(part.length);
  });
  const bytes = new Uint8Array(vectors.buffer);
  for (;;) {
    const count = Number(call.writev(fd, bytes, parts.length));
    if (count >= 0) return count;
    const number = errno[0]!;
    if (number === 11) return -1; // EAGAIN
    if (number !== 4) throw failure("writev", number, `descriptor ${fd}`); // EINTR
  }
}

/** An eventfd: a counter that one thread raises to wake another from epoll. */
export function eventfd(): number {
  return check("eventfd", "", 0, O_CLOEXEC | O_NONBLOCK);
}

/** Raises an eventfd by one. */
export function signalEventfd(fd: number): void {
  check("write", `eventfd ${fd}`, fd, new Uint8Array(new BigUint64Array([1n]).buffer), 8);
}

/** Reads an eventfd and sets it back: how often it was raised. */
export function drainEventfd(fd: number): number {
  const count = new BigUint64Array(1);
  return readNow(fd, new Uint8Array(count.buffer)) === 8 ? Number(count[0]) : 0;
}

/**
 * Copies what a FIFO holds, up to maxBytes, into a pipe without taking it from the FIFO; -1 when it
 * is empty. The pipe must be empty too.
 */
export function tee(fifo: number, pipeFd: number, maxBytes: number): number {
  const { call, errno } = libc();
  const count = Number(call.tee(fifo, pipeFd, maxBytes, SPLICE_F_NONBLOCK));
  if (count > 0) return count;
  const number = errno[0]!;
  if (count === 0 || number === 11) return -1; // 0: nobody has it open for writing
  throw failure("tee", number, `descriptor ${fifo}`);
}

/** Takes up to count bytes from a FIFO and throws them away (into nullFd, /dev/null); how many went. */
export function discard(fifo: number, nullFd: number, count: number): number {
  const { call, errno } = libc();
  let gone = 0;
  while (gone < count) {
    const took = Number(call.splice(fifo, null, nullFd, null, count - gone, SPLICE_F_NONBLOCK));
    const number = errno[0]!;
    if (took > 0) gone += took;
    else if (took === 0 || number === 11) break; // its own writer has read it
    else throw failure("splice", number, `descriptor ${fifo}`);
  }
  return gone;
}

/** Another descriptor of the same open file, closed on exec. */
export function duplicate(fd: number): number {
  const F_DUPFD_CLOEXEC = 1030;
  return check("fcntl", `F_DUPFD_CLOEXEC of descriptor ${fd}`, fd, F_DUPFD_CLOEXEC, 3);
}

/** Lets a descriptor pass an execve of this process. */
export function keepOnExec(fd: number, kept: boolean): void {
  const F_SETFD = 2;
  check("fcntl", `FD_CLOEXEC of descriptor ${fd}`, fd, F_SETFD, kept ? 0 : 1);
}

/** epoll(7)'s events; of ERR and HUP it tells always. */
export const EPOLLIN = 0x1;
/** Of a file of the kernel's: it has changed since it was read. */
export const EPOLLPRI = 0x2;
export const EPOLLOUT = 0x4;
export const EPOLLERR = 0x8;
export const EPOLLHUP = 0x10;
/** The peer of a socket sends no more, or has gone. */
export const EPOLLRDHUP = 0x2000;
/** Told once of what came. */
export const EPOLLET = 0x80000000;
/** Told once at all, until it is set again. */
export const EPOLLONESHOT = 0x40000000;

const EPOLL_CTL_ADD = 1;
const EPOLL_CTL_DEL = 2;
const EPOLL_CTL_MOD = 3;

export type Ready = { fd: number; events: number; tag: number };

/** Readiness of many descriptors (epoll(7)). */
export class Epoll {
  readonly fd: number;
  // struct epoll_event is packed on x86-64 only.
  readonly #stride = process.arch === "x64" ? 12 : 16;
  readonly #dataAt = process.arch === "x64" ? 4 : 8;
  readonly #events = new Uint8Array(16 * 64);
  readonly #view = new DataView(this.#events.buffer);

  /** fd: of an epoll that another thread has made. */
  constructor(fd = check("epoll_create1", "", O_CLOEXEC)) {
    this.fd = fd;
  }

  /** Watches fd, by default for input, edge-triggered; tag: comes back with what is told of it. */
  add(fd: number, events = EPOLLIN | EPOLLET, tag = 0): void {
    this.#control(EPOLL_CTL_ADD, fd, { events, tag });
  }

  /** Watches a descriptor that was added for something else. */
  change(fd: number, events: number, tag = 0): void {
    this.#control(EPOLL_CTL_MOD, fd, { events, tag });
  }

  remove(fd: number): void {
    this.#control(EPOLL_CTL_DEL, fd, { events: 0, tag: 0 });
  }

  #control(operation: number, fd: number, { events, tag }: Omit<Ready, "fd">): void {
    const event = new Uint8Array(16);
    const view = new DataView(event.buffer);
    view.setUint32(0, events >>> 0, true);
    view.setInt32(this.#dataAt, fd, true);
    view.setUint32(this.#dataAt + 4, tag, true);
    check("epoll_ctl", `descriptor ${fd}`, this.fd, operation, fd, event);
  }

  /** Descriptors that are ready; waits up to timeoutMs, -1 = for ever. At most 64 a call. */
  wait(timeoutMs: number): Ready[] {
    let count: number;
    try {
      count = check("epoll_wait", "", this.fd, this.#events, 64, timeoutMs);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === "EINTR") return [];
      throw error;
    }
    const ready: Ready[] = [];
    for (let i = 0; i < count; i++) {
      const at = i * this.#stride;
      const events = this.#view.getUint32(at, true);
      const fd = this.#view.getInt32(at + this.#dataAt, true);
      ready.push({ fd, events, tag: this.#view.getUint32(at + this.#dataAt + 4, true) });
    }
    return ready;
  }
}
