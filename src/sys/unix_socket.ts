// Sends and receives descriptors over unix sockets (SCM_RIGHTS), which node:net cannot.
import { randomBytes } from "node:crypto";
import { mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { CriError, errnoOf } from "../base/errors.ts";
import { Descriptor } from "./descriptor.ts";
import { check, libc, O_CLOEXEC, O_NONBLOCK, z } from "./libc.ts";

const AF_UNIX = 1;
const SOCK_STREAM = 1;
const SOCK_DGRAM = 2;
const SOL_SOCKET = 1;
const SCM_RIGHTS = 1;
const F_SETFL = 4;
const O_RDWR = 2;

/** struct sockaddr_un: family, then the path. */
function socketAddress(path: string): Uint8Array {
  const address = new Uint8Array(110);
  const bytes = z(path);
  if (bytes.length > address.length - 2) throw new Error(`socket path too long: ${path}`);
  address[0] = AF_UNIX;
  address.set(bytes, 2);
  return address;
}

/** Sends one datagram without blocking; a path that begins with "@" is an abstract name (unix(7)). */
export function sendDatagram(path: string, text: string): void {
  using socket = unixSocket(SOCK_DGRAM, path);
  const address = socketAddress(path);
  const isAbstract = path.startsWith("@");
  if (isAbstract) address[2] = 0;
  // The address length delimits an abstract name.
  const length = isAbstract ? 2 + Buffer.byteLength(path) : address.length;
  check("connect", path, socket.fd, address, length);
  const bytes = Buffer.from(text);
  check("write", path, socket.fd, bytes, bytes.length);
}

function unixSocket(type: number, path: string): Descriptor {
  return new Descriptor(check("socket", path, AF_UNIX, type | O_CLOEXEC | O_NONBLOCK, 0));
}

/** Makes a unix socket that listens at path; accepting from it never blocks. */
function listenUnix(path: string): Descriptor {
  const address = socketAddress(path);
  using undo = new DisposableStack();
  const listener = undo.use(unixSocket(SOCK_STREAM, path));
  check("bind", path, listener.fd, address, address.length);
  check("listen", path, listener.fd, 1);
  undo.move();
  return listener;
}

/** Builds a struct msghdr (64-bit Linux) with everything that it points to, in one buffer. */
class Message {
  static readonly #controlAt = 72;
  static readonly #dataAt = 136;
  readonly bytes = new Uint8Array(4096);
  readonly control = new DataView(this.bytes.buffer, Message.#controlAt);
  readonly #header = new BigUint64Array(this.bytes.buffer, 0, 9);

  constructor(controlBytes: number, dataBytes: number) {
    const at = libc().address(this.bytes);
    // name, namelen, iov, iovlen, control, controllen, flags; then the iov: base, len.
    const control = [at + BigInt(Message.#controlAt), BigInt(controlBytes)];
    this.#header.set([0n, 0n, at + 56n, 1n, ...control, 0n]);
    this.#header.set([at + BigInt(Message.#dataAt), BigInt(dataBytes)], 7);
  }

  get controlBytes(): number {
    return Number(this.#header[5]);
  }
}

/** How many descriptors fit into the control part of this class's messages. */
const descriptorsMax = 12;
/** struct cmsghdr: length, level, type; then the descriptors. */
const cmsgHeadBytes = 16;

/** Sends descriptors, which the caller keeps owning, to the queue of the socket that listens at path. */
export function sendDescriptors(path: string, descriptors: readonly Descriptor[]): void {
  using connection = unixSocket(SOCK_STREAM, path);
  const address = socketAddress(path);
  check("connect", path, connection.fd, address, address.length);
  const length = cmsgHeadBytes + 4 * descriptors.length;
  const { bytes, control } = new Message(Math.ceil(length / 8) * 8, 1);
  control.setBigUint64(0, BigInt(length), true);
  control.setInt32(8, SOL_SOCKET, true);
  control.setInt32(12, SCM_RIGHTS, true);
  descriptors.forEach(({ fd }, index) => control.setInt32(cmsgHeadBytes + 4 * index, fd, true));
  check("sendmsg", path, connection.fd, bytes, 0);
}

function accept({ fd: listener }: Descriptor): Descriptor | undefined {
  try {
    return new Descriptor(check("accept4", "", listener, null, null, O_CLOEXEC | O_NONBLOCK));
  } catch (error) {
    if (errnoOf(error) === "EAGAIN") return undefined;
    throw error;
  }
}

/**
 * Receives the descriptors that a peer has sent to a listening socket (SCM_RIGHTS), as non-blocking ones.
 * undefined: no peer has connected. @throws when the peer has sent none.
 */
function receiveDescriptors(listener: Descriptor): Descriptor[] | undefined {
  using connection = accept(listener);
  if (connection === undefined) return undefined;
  const message = new Message(cmsgHeadBytes + 4 * descriptorsMax, 2048);
  const MSG_CMSG_CLOEXEC = 0x40000000;
  check("recvmsg", "", connection.fd, message.bytes, MSG_CMSG_CLOEXEC);
  if (message.controlBytes < 20 || message.control.getInt32(12, true) !== SCM_RIGHTS) {
    throw new Error("the peer has sent no descriptor");
  }
  const count = (Number(message.control.getBigUint64(0, true)) - cmsgHeadBytes) / 4;
  const received = Array.from(
    { length: count },
    (_, index) => new Descriptor(message.control.getInt32(cmsgHeadBytes + 4 * index, true)),
  );
  for (const { fd } of received) check("fcntl", "O_NONBLOCK", fd, F_SETFL, O_NONBLOCK | O_RDWR);
  return received;
}

function firstOf([first, ...others]: Descriptor[]): Descriptor {
  for (const other of others) other.close();
  return first!;
}

/** A listening socket for descriptors, at a path of its own. */
export class DescriptorInbox implements Disposable {
  /** Short: a socket's path has at most 107 bytes, and a container's id takes 64. */
  readonly path: string;
  readonly #listener: Descriptor;

  /** Makes the folder if it is absent: a cleaner of /run may have removed it. */
  constructor(folder: string) {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    this.path = join(folder, `tty-${randomBytes(4).toString("hex")}`);
    this.#listener = listenUnix(this.path);
  }

  /** @throws CriError FAILED_PRECONDITION when none was sent yet. */
  takeAll(): Descriptor[] {
    const received = receiveDescriptors(this.#listener);
    if (received !== undefined) return received;
    throw new CriError("FAILED_PRECONDITION", `no descriptor was sent to ${this.path}`);
  }

  /** Receives the first descriptor. @throws CriError FAILED_PRECONDITION when none was sent yet. */
  take(): Descriptor {
    return firstOf(this.takeAll());
  }

  /** Like take(); undefined when none was sent. */
  takeIfSent(): Descriptor | undefined {
    const received = receiveDescriptors(this.#listener);
    return received && firstOf(received);
  }

  [Symbol.dispose](): void {
    this.#listener.close();
    rmSync(this.path, { force: true });
  }
}
