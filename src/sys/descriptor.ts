// Owns open descriptors: each has one owner, is closed once, and is never used after that. The kernel reuses
// closed numbers at once, so a stale number would read, or close, another file. Therefore a descriptor is
// never a bare number outside this room.
import { closeSync, constants, openSync } from "node:fs";
import { constants as os } from "node:os";
import { check, failure, libc, O_CLOEXEC, O_NONBLOCK } from "./libc.ts";

/** A descriptor between two owners: passed to another thread, or kept across an execve. */
export type Released = number & { readonly released: unique symbol };

export class Descriptor implements Disposable {
  #fd: number;

  /** fd: open; this object owns it from here on. Rooms above sys use `open` and `adopt`. */
  constructor(fd: number) {
    this.#fd = fd;
  }

  /** Opens a file, closed on exec. @throws open(2)'s errors. */
  static open(path: string | Buffer, flags: number, mode?: number): Descriptor {
    return new Descriptor(openSync(path, flags, mode));
  }

  /** Opens a folder, closed on exec. @throws open(2)'s errors, ENOTDIR for any other file. */
  static openFolder(path: string): Descriptor {
    return Descriptor.open(path, constants.O_RDONLY | constants.O_DIRECTORY);
  }

  /** Creates a file for writing. @throws EEXIST. */
  static create(path: string | Buffer, mode = 0o600): Descriptor {
    const { O_WRONLY, O_CREAT, O_EXCL, O_NOFOLLOW } = constants;
    return Descriptor.open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, mode);
  }

  /** Takes over a descriptor that another owner has released. */
  static adopt(released: Released): Descriptor {
    return new Descriptor(released);
  }

  /** Takes over a descriptor that was kept across execve, by its number as text. */
  static inherited(number: string): Descriptor {
    return new Descriptor(Number(number));
  }

  /** The number, for one system call. @throws once the descriptor is closed or released. */
  get fd(): number {
    if (this.#fd === closed) throw new Error("a descriptor was used after it was closed");
    return this.#fd;
  }

  get isOpen(): boolean {
    return this.#fd !== closed;
  }

  /** Returns another descriptor of the same open file, closed on exec. */
  duplicate(): Descriptor {
    const { fd } = this;
    const F_DUPFD_CLOEXEC = 1030;
    const copy = check("fcntl", `F_DUPFD_CLOEXEC of descriptor ${fd}`, fd, F_DUPFD_CLOEXEC, 3);
    return new Descriptor(copy);
  }

  /** Gives the descriptor up without closing it: exactly one other owner adopts it. */
  release(): Released {
    const { fd } = this;
    this.#fd = closed;
    return fd as Released;
  }

  /**
   * Closes the descriptor; idempotent.
   * @throws close(2)'s errors (NFS reports failed writes there); the descriptor is closed all the same.
   */
  close(): void {
    const fd = this.#fd;
    if (fd === closed) return;
    this.#fd = closed;
    closeSync(fd);
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

const closed = -1;

/** Sets a FIFO's or pipe's capacity in bytes; the kernel may refuse (EPERM above its limit). */
export function setPipeSize({ fd }: Descriptor, bytes: number): void {
  const F_SETPIPE_SZ = 1031;
  check("fcntl", `F_SETPIPE_SZ on descriptor ${fd}`, fd, F_SETPIPE_SZ, bytes);
}

/** Returns a FIFO's or pipe's capacity in bytes. */
export function pipeSize({ fd }: Descriptor): number {
  const F_GETPIPE_SZ = 1032;
  return check("fcntl", `F_GETPIPE_SZ on descriptor ${fd}`, fd, F_GETPIPE_SZ, 0);
}

const { EAGAIN, EINTR, EIO } = os.errno;
const F_SETFL = 4;
const SPLICE_F_NONBLOCK = 2;

export type Pipe = Disposable & { reader: Descriptor; writer: Descriptor };

/** Makes an anonymous pipe, both ends closed on exec, the reading end non-blocking. */
export function pipe(): Pipe {
  const fds = new Int32Array(2);
  check("pipe2", "", new Uint8Array(fds.buffer), O_CLOEXEC);
  const [reader, writer] = [new Descriptor(fds[0]!), new Descriptor(fds[1]!)];
  setBlocking(reader, false);
  const close = () => {
    reader.close();
    writer.close();
  };
  return { reader, writer, [Symbol.dispose]: close };
}

/** Sets the blocking mode of a pipe's end, for every process that shares this end. */
export function setBlocking({ fd }: Descriptor, blocks: boolean): void {
  check("fcntl", `F_SETFL on descriptor ${fd}`, fd, F_SETFL, blocks ? 0 : O_NONBLOCK);
}

/** Reads into buffer; returns the count, -1 without input now (EAGAIN), 0 at the end (terminals: EIO). */
export function readNow({ fd }: Descriptor, buffer: Uint8Array): number {
  const { call, errno } = libc();
  for (;;) {
    const count = Number(call.read(fd, buffer, buffer.length));
    if (count >= 0) return count;
    const number = errno[0]!;
    if (number === EAGAIN) return -1;
    if (number === EIO) return 0;
    if (number !== EINTR) throw failure("read", number, `descriptor ${fd}`);
  }
}

/** Bytes that wait in a pipe. */
export function unreadBytes({ fd }: Descriptor): number {
  const FIONREAD = 0x541b;
  return queued("FIONREAD", fd, FIONREAD);
}

/** Bytes that a socket's peer has not acknowledged (tcp(7), SIOCOUTQ). */
export function unsentBytes({ fd }: Descriptor): number {
  const TIOCOUTQ = 0x5411;
  return queued("TIOCOUTQ", fd, TIOCOUTQ);
}

function queued(name: string, fd: number, request: number): number {
  const count = new Int32Array(1);
  check("ioctl", `${name} of descriptor ${fd}`, fd, request, new Uint8Array(count.buffer));
  return count[0]!;
}

/** True when no process has the pipe open for writing; bytes may be left in it. */
export function hasHungUp(reader: Descriptor): boolean {
  const POLLHUP = 0x10;
  return (pollNow(reader, 0) & POLLHUP) !== 0;
}

/** True when a write to the FIFO would wait for room. reader: its reading end. */
export function isFull({ fd }: Descriptor): boolean {
  const POLLOUT = 4;
  // Only a writing end tells.
  using writer = Descriptor.open(`/proc/self/fd/${fd}`, constants.O_WRONLY | constants.O_NONBLOCK);
  return (pollNow(writer, POLLOUT) & POLLOUT) === 0;
}

/** Returns whether there is something to read, or a client of a listening socket to accept. */
export function hasInput(descriptor: Descriptor): boolean {
  const POLLIN = 1;
  return (pollNow(descriptor, POLLIN) & POLLIN) !== 0;
}

/** Returns whether a file of the kernel has changed since the last call, or since it was opened (POLLPRI). */
export function hasNews(descriptor: Descriptor): boolean {
  const POLLPRI = 2;
  return (pollNow(descriptor, POLLPRI) & POLLPRI) !== 0;
}

/** Returns what poll(2) tells of a descriptor now. */
function pollNow({ fd }: Descriptor, events: number): number {
  const { call, errno } = libc();
  const pollfd = new DataView(new ArrayBuffer(8)); // struct pollfd: fd, events, revents
  pollfd.setInt32(0, fd, true);
  pollfd.setInt16(4, events, true);
  // A pending signal interrupts it although it does not wait.
  while (Number(call.poll(new Uint8Array(pollfd.buffer), 1, 0)) < 0) {
    if (errno[0] !== EINTR) throw failure("poll", errno[0]!, `descriptor ${fd}`);
  }
  return pollfd.getInt16(6, true);
}

/**
 * Writes at most 64 parts in a row, as far as the descriptor takes them now; returns the bytes written, -1
 * for none (EAGAIN). @throws EPIPE, ECONNRESET when the reader has closed.
 */
export function writeNow({ fd }: Descriptor, parts: readonly Uint8Array[]): number {
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
    if (number === EAGAIN) return -1;
    if (number !== EINTR) throw failure("writev", number, `descriptor ${fd}`);
  }
}

/** Makes an eventfd, a counter that one thread raises to wake another from epoll. */
export function eventfd(): Descriptor {
  return new Descriptor(check("eventfd", "", 0, O_CLOEXEC | O_NONBLOCK));
}

/** Raises an eventfd by one. */
export function signalEventfd({ fd }: Descriptor): void {
  check("write", `eventfd ${fd}`, fd, new Uint8Array(new BigUint64Array([1n]).buffer), 8);
}

/** Reads and resets an eventfd; returns how often it was raised. */
export function drainEventfd(event: Descriptor): number {
  const count = new BigUint64Array(1);
  return readNow(event, new Uint8Array(count.buffer)) === 8 ? Number(count[0]) : 0;
}

/** Copies bytes of a FIFO into an empty pipe without consuming them; returns the count, -1 for an empty FIFO. */
export function tee({ fd: fifo }: Descriptor, { fd: into }: Descriptor, maxBytes: number): number {
  const { call, errno } = libc();
  const count = Number(call.tee(fifo, into, maxBytes, SPLICE_F_NONBLOCK));
  if (count > 0) return count;
  const number = errno[0]!;
  if (count === 0 || number === EAGAIN) return -1; // 0: no process has it open for writing
  throw failure("tee", number, `descriptor ${fifo}`);
}

/** Discards up to count bytes of a FIFO (into /dev/null); returns how many. */
export function discard(
  { fd: fifo }: Descriptor,
  { fd: devNull }: Descriptor,
  count: number,
): number {
  const { call, errno } = libc();
  let discarded = 0;
  while (discarded < count) {
    const took = Number(
      call.splice(fifo, null, devNull, null, count - discarded, SPLICE_F_NONBLOCK),
    );
    const number = errno[0]!;
    if (took > 0) discarded += took;
    else if (took === 0 || number === EAGAIN) break; // its writer has read them itself
    else throw failure("splice", number, `descriptor ${fifo}`);
  }
  return discarded;
}

/** Sets whether a descriptor stays open across this process's execve. */
export function keepOnExec({ fd }: Descriptor, kept: boolean): void {
  const F_SETFD = 2;
  check("fcntl", `FD_CLOEXEC of descriptor ${fd}`, fd, F_SETFD, kept ? 0 : 1);
}
