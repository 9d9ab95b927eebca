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

/** Bytes read into buffer; -1 when there is nothing now (EAGAIN), 0 at the end (of a terminal: EIO). */
export function readNow(fd: number, buffer: Uint8Array): number {
  const { call, errno } = libc();
  for (;;) {
    const count = Number(call.read(fd, buffer, buffer.length));
    if (count >= 0) return count;
    const number = errno();
    if (number === 11) return -1; // EAGAIN
    if (number === 5) return 0; // EIO
    if (number !== 4) throw failure("read", number, `descriptor ${fd}`); // EINTR
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
  if (count === 0 || errno() === 11) return -1; // 0: nobody has it open for writing
  throw failure("tee", errno(), `descriptor ${fifo}`);
}

/** Takes up to count bytes from a FIFO and throws them away (into nullFd, /dev/null); how many went. */
export function discard(fifo: number, nullFd: number, count: number): number {
  const { call, errno } = libc();
  let gone = 0;
  while (gone < count) {
    const took = Number(call.splice(fifo, null, nullFd, null, count - gone, SPLICE_F_NONBLOCK));
    if (took > 0) gone += took;
    else if (took === 0 || errno() === 11) break; // its own writer has read it
    else throw failure("splice", errno(), `descriptor ${fifo}`);
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

/** Readiness of many descriptors (epoll(7), edge-triggered: told once of what came). */
export class Epoll {
  readonly #fd = check("epoll_create1", "", O_CLOEXEC);
  // struct epoll_event is packed on x86-64 only.
  readonly #stride = process.arch === "x64" ? 12 : 16;
  readonly #dataAt = process.arch === "x64" ? 4 : 8;
  readonly #events = new Uint8Array(16 * 64);
  readonly #view = new DataView(this.#events.buffer);

  /** Watches fd for input. */
  add(fd: number): void {
    const event = new Uint8Array(16);
    const view = new DataView(event.buffer);
    view.setUint32(0, 0x80000001, true); // EPOLLIN | EPOLLET
    view.setInt32(this.#dataAt, fd, true);
    check("epoll_ctl", `add descriptor ${fd}`, this.#fd, 1, fd, event);
  }

  remove(fd: number): void {
    check("epoll_ctl", `remove descriptor ${fd}`, this.#fd, 2, fd, new Uint8Array(16));
  }

  /** Descriptors that are ready; waits up to timeoutMs, -1 = for ever. At most 64 a call. */
  wait(timeoutMs: number): number[] {
    let count: number;
    try {
      count = check("epoll_wait", "", this.#fd, this.#events, 64, timeoutMs);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === "EINTR") return [];
      throw error;
    }
    const ready: number[] = [];
    for (let i = 0; i < count; i++) {
      ready.push(this.#view.getInt32(i * this.#stride + this.#dataAt, true));
    }
    return ready;
  }
}
