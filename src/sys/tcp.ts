// Makes TCP sockets as descriptors: they can belong to another network namespace, and epoll reports their
// peer's end even while nothing is read.
import { constants } from "node:os";
import { throwIfAborted } from "../base/abort.ts";
import { errnoOf } from "../base/errors.ts";
import { Descriptor } from "./descriptor.ts";
import { check, failure, O_CLOEXEC, O_NONBLOCK } from "./libc.ts";
import type { Poller } from "./poller.ts";
import { domainOf, familyOf, hostPort, socketAddress, type Family } from "./socket_address.ts";

const SOCK_STREAM = 1;
const IPPROTO_TCP = 6;
const TCP_NODELAY = 1;
const TCP_NOTSENT_LOWAT = 25;
const SOL_SOCKET = 1;
const SO_REUSEADDR = 2;
const SO_ERROR = 4;
const SHUT_WR = 1;
/**
 * Unsent bytes that a socket takes. By default the kernel takes some megabytes, and asks for more when a third of them
 * is sent: a peer that reads 100 KB a second would seem to take nothing for 10 s.
 */
const unsentMax = 128 << 10;
/** Backlog; the kernel bounds it by net.core.somaxconn. */
const backlogMax = 4096;

/** Makes an unconnected socket; it stays in the thread's current network namespace. */
export function tcpSocket(family: Family): Descriptor {
  const domain = domainOf(family);
  return new Descriptor(check("socket", family, domain, SOCK_STREAM | O_CLOEXEC | O_NONBLOCK, 0));
}

/** Listens on an address of this node; port 0: any free port. @throws EADDRINUSE, EADDRNOTAVAIL. */
export function listenTcp(host: string, port: number): { listener: Descriptor; port: number } {
  using undo = new DisposableStack();
  const listener = undo.use(tcpSocket(familyOf(host)));
  const { fd } = listener;
  setOption(listener, SOL_SOCKET, SO_REUSEADDR);
  const address = socketAddress(host, port);
  check("bind", hostPort(host, port), fd, address, address.length);
  check("listen", hostPort(host, port), fd, backlogMax);
  const length = new Uint8Array(new Uint32Array([address.length]).buffer);
  check("getsockname", "", fd, address, length);
  undo.move();
  return { listener, port: new DataView(address.buffer).getUint16(2) };
}

const SOCK_DGRAM = 2;

/**
 * Tests whether a program of the node has the port: a TCP listener, or any UDP socket. False where that cannot be
 * known, such as for an address that the node lacks.
 */
export function isPortTaken(protocol: "tcp" | "udp", host: string, port: number): boolean {
  const type = protocol === "tcp" ? SOCK_STREAM : SOCK_DGRAM;
  try {
    const family = domainOf(familyOf(host));
    using socket = new Descriptor(check("socket", host, family, type | O_CLOEXEC, 0));
    if (protocol === "tcp") setOption(socket, SOL_SOCKET, SO_REUSEADDR); // else closed connections count
    const address = socketAddress(host, port);
    check("bind", hostPort(host, port), socket.fd, address, address.length);
    return false;
  } catch (error) {
    return errnoOf(error) === "EADDRINUSE";
  }
}

/** Accepts a pending connection; undefined: there is none. */
export function accept({ fd: listener }: Descriptor): Descriptor | undefined {
  let connection: Descriptor;
  try {
    const fd = check("accept4", "", listener, null, null, O_CLOEXEC | O_NONBLOCK);
    connection = new Descriptor(fd);
  } catch (error) {
    if (errnoOf(error) === "EAGAIN" || errnoOf(error) === "ECONNABORTED") return undefined;
    throw error;
  }
  try {
    forStreams(connection);
    return connection;
  } catch (error) {
    connection.close();
    throw error;
  }
}

/**
 * Connects a socket to an address, as seen from its network namespace. The caller closes it where this fails.
 * @throws ECONNREFUSED and others; CriError DEADLINE_EXCEEDED or CANCELLED.
 */
export async function connectTcp(
  socket: Descriptor,
  options: { address: string; port: number; poller: Poller; signal: AbortSignal },
): Promise<void> {
  const { port, poller, signal } = options;
  const address = socketAddress(options.address, port);
  const subject = hostPort(options.address, port);
  throwIfAborted(`connect ${subject}`, signal);
  try {
    check("connect", subject, socket.fd, address, address.length);
  } catch (error) {
    if (errnoOf(error) !== "EINPROGRESS") throw error;
    const giveUp = () => poller.forget(socket);
    signal.addEventListener("abort", giveUp, { once: true });
    await poller.writable(socket).finally(() => signal.removeEventListener("abort", giveUp));
    throwIfAborted(`connect ${subject}`, signal);
    const result = new Uint8Array(4);
    const length = new Uint8Array(new Uint32Array([4]).buffer);
    check("getsockopt", subject, socket.fd, SOL_SOCKET, SO_ERROR, result, length);
    const errno = new DataView(result.buffer).getInt32(0, true);
    if (errno !== 0) throw failure("connect", errno, subject);
  }
  forStreams(socket);
}

/** Half-closes a socket; the peer may go on sending. */
export function shutdownWrite({ fd }: Descriptor): void {
  try {
    check("shutdown", `descriptor ${fd}`, fd, SHUT_WR);
  } catch (error) {
    if (errnoOf(error) !== "ENOTCONN") throw error; // the peer has disconnected
  }
}

/** True when a connect failed because the address family is not available. */
export function lacksFamily(error: unknown): boolean {
  const { EAFNOSUPPORT, EADDRNOTAVAIL } = constants.errno;
  const errno = -((error as NodeJS.ErrnoException).errno ?? 0);
  return errno === EAFNOSUPPORT || errno === EADDRNOTAVAIL;
}

function forStreams(socket: Descriptor): void {
  setOption(socket, IPPROTO_TCP, TCP_NODELAY);
  setOption(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, unsentMax);
}

function setOption({ fd }: Descriptor, level: number, option: number, value = 1): void {
  const bytes = new Uint8Array(new Int32Array([value]).buffer);
  check("setsockopt", `descriptor ${fd}`, fd, level, option, bytes, bytes.length);
}
