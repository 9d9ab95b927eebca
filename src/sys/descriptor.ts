// Owns open descriptors: each has one owner, is closed once, and is never used after that. The kernel
// gives a closed number out again at once, so a number that outlives its owner reads, or closes, somebody
// else's file. Outside this room a descriptor is therefore never a bare number.
import { closeSync, constants, openSync } from "node:fs";
import { check, failure, libc, O_CLOEXEC, O_NONBLOCK } from "./libc.ts";

/** A descriptor between two owners: on its way to another thread, or kept over an execve. */
export type Released = number & { readonly released: unique symbol };

export class Descriptor implements Disposable {
  #fd: number;

  /** fd: open, and this object's from here on. Rooms above sys use `open` and `adopt`. */
  constructor(fd: number) {
    this.#fd = fd;
  }

  /** Opens a file, closed on exec. @throws what open(2) says. */
  static open(path: string | Buffer, flags: number, mode?: number): Descriptor {
    return new Descriptor(openSync(path, flags, mode));
  }

  /** Makes a file that must not be there yet, and opens it to be written. @throws EEXIST. */
  static create(path: string | Buffer, mode = 0o600): Descriptor {
    const { O_WRONLY, O_CREAT, O_EXCL, O_NOFOLLOW } = constants;
    return Descriptor.open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, mode);
  }

  /** Owns what another owner has released. */
  static adopt(released: Released): Descriptor {
    return new Descriptor(released);
  }

  /** Owns what this process had open before it executed this program, by its number as text. */
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

  /** Another descriptor of the same open file, closed on exec. */
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
   * Closes once; a later call does nothing.
   * @throws what close(2) says (NFS reports a failed write there); the descriptor is gone all the same.
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

const F_SETFL = 4;
const SPLICE_F_NONBLOCK = 2;

export type Pipe = Disposable & { reader: Descriptor; writer: Descriptor };

/** An anonymous pipe, both ends closed on exec, the reading end not blocking. */
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

/** Of one end of a pipe: whoever else has this same end shares it. */
export function setBlocking({ fd }: Descriptor, blocks: boolean): void {
  check("fcntl", `F_SETFL on descriptor ${fd}`, fd, F_SETFL, blocks ? 0 : O_NONBLOCK);
}

/** Bytes read into buffer; -1 when there is nothing now (EAGAIN), 0 at the end (of a terminal: EIO). */
export function readNow({ fd }: Descriptor, buffer: Uint8Array): number {
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
    if (number === 11) return -1; // EAGAIN
    if (number !== 4) throw failure("writev", number, `descriptor ${fd}`); // EINTR
  }
}

/** An eventfd: a counter that one thread raises to wake another from epoll. */
export function eventfd(): Descriptor {
  return new Descriptor(check("eventfd", "", 0, O_CLOEXEC | O_NONBLOCK));
}

/** Raises an eventfd by one. */
export function signalEventfd({ fd }: Descriptor): void {
  check("write", `eventfd ${fd}`, fd, new Uint8Array(new BigUint64Array([1n]).buffer), 8);
}

/** Reads an eventfd and sets it back: how often it was raised. */
export function drainEventfd(event: Descriptor): number {
  const count = new BigUint64Array(1);
  return readNow(event, new Uint8Array(count.buffer)) === 8 ? Number(count[0]) : 0;
}

/**
 * Copies what a FIFO holds, up to maxBytes, into a pipe without taking it from the FIFO; -1 when it
 * is empty. The pipe must be empty too.
 */
export function tee({ fd: fifo }: Descriptor, { fd: into }: Descriptor, maxBytes: number): number {
  const { call, errno } = libc();
  const count = Number(call.tee(fifo, into, maxBytes, SPLICE_F_NONBLOCK));
  if (count > 0) return count;
  const number = errno[0]!;
  if (count === 0 || number === 11) return -1; // 0: nobody has it open for writing
  throw failure("tee", number, `descriptor ${fifo}`);
}

/** Takes up to count bytes from a FIFO and throws them away (into /dev/null); how many went. */
export function discard(
  { fd: fifo }: Descriptor,
  { fd: devNull }: Descriptor,
  count: number,
): number {
  const { call, errno } = libc();
  let gone = 0;
  while (gone < count) {
    const took = Number(call.splice(fifo, null, devNull, null, count - gone, SPLICE_F_NONBLOCK));
    const number = errno[0]!;
    if (took > 0) gone += took;
    else if (took === 0 || number === 11) break; // its own writer has read it
    else throw failure("splice", number, `descriptor ${fifo}`);
  }
  return gone;
}

/** Lets a descriptor pass an execve of this process. */
export function keepOnExec({ fd }: Descriptor, kept: boolean): void {
  const F_SETFD = 2;
  check("fcntl", `FD_CLOEXEC of descriptor ${fd}`, fd, F_SETFD, kept ? 0 : 1);
}
