// The kernel's interface: libc functions by name (never by syscall number: arm64 is a target),
// through bun:ffi or Deno.dlopen. Nothing else in the project loads a native symbol.
import { closeSync } from "node:fs";
import { constants } from "node:os";

type Kind = "i32" | "u32" | "i64" | "u64" | "usize" | "buffer";
type Value = number | bigint | Uint8Array | null;
type Native = (...args: Value[]) => number | bigint;

const signatures = {
  mount: { args: ["buffer", "buffer", "buffer", "u64", "buffer"], returns: "i32" },
  umount2: { args: ["buffer", "i32"], returns: "i32" },
  mkfifo: { args: ["buffer", "u32"], returns: "i32" },
  mknod: { args: ["buffer", "u32", "u64"], returns: "i32" },
  chroot: { args: ["buffer"], returns: "i32" },
  fchdir: { args: ["i32"], returns: "i32" },
  lsetxattr: { args: ["buffer", "buffer", "buffer", "usize", "i32"], returns: "i32" },
  lgetxattr: { args: ["buffer", "buffer", "buffer", "usize"], returns: "i64" },
  syncfs: { args: ["i32"], returns: "i32" },
  flock: { args: ["i32", "i32"], returns: "i32" },
  prctl: { args: ["i32", "u64", "u64", "u64", "u64"], returns: "i32" },
  waitpid: { args: ["i32", "buffer", "i32"], returns: "i32" },
  fcntl: { args: ["i32", "i32", "i64"], returns: "i32" },
  read: { args: ["i32", "buffer", "usize"], returns: "i64" },
  write: { args: ["i32", "buffer", "usize"], returns: "i64" },
  pipe2: { args: ["buffer", "i32"], returns: "i32" },
  eventfd: { args: ["u32", "i32"], returns: "i32" },
  socket: { args: ["i32", "i32", "i32"], returns: "i32" },
  bind: { args: ["i32", "buffer", "u32"], returns: "i32" },
  listen: { args: ["i32", "i32"], returns: "i32" },
  accept4: { args: ["i32", "buffer", "buffer", "i32"], returns: "i32" },
  recvmsg: { args: ["i32", "buffer", "i32"], returns: "i64" },
  epoll_create1: { args: ["i32"], returns: "i32" },
  epoll_ctl: { args: ["i32", "i32", "i32", "buffer"], returns: "i32" },
  epoll_wait: { args: ["i32", "buffer", "i32", "i32"], returns: "i32" },
} as const satisfies Record<string, { args: readonly Kind[]; returns: Kind }>;

type Libc = {
  call: Record<keyof typeof signatures, Native>;
  errno: () => number;
  /** Where a buffer lies, for structures that point to others. */
  address: (buffer: Uint8Array) => bigint;
};

type BunFfi = {
  dlopen(file: string, symbols: object): { symbols: Record<string, (...args: unknown[]) => never> };
  read: { i32(pointer: number, offset: number): number };
  ptr(buffer: Uint8Array): number;
};
type DenoFfi = {
  dlopen(file: string, symbols: object): { symbols: Record<string, (...args: unknown[]) => never> };
  UnsafePointerView: new (pointer: object) => { getInt32(): number };
  UnsafePointer: { of(buffer: Uint8Array): object; value(pointer: object): bigint };
};

let loaded: Libc | undefined;

/** Opened at first use: commands that only speak gRPC never pay for it. */
function libc(): Libc {
  loaded ??= "Deno" in globalThis ? loadDeno() : loadBun();
  return loaded;
}

/** glibc, then musl's loader, which is musl's libc itself. */
function firstLibc<T>(open: (file: string) => T): T {
  const arch = process.arch === "arm64" ? "aarch64" : "x86_64";
  let failure: unknown;
  for (const file of ["libc.so.6", `/lib/ld-musl-${arch}.so.1`]) {
    try {
      return open(file);
    } catch (error) {
      failure ??= error;
    }
  }
  throw new Error("no libc found to load", { cause: failure });
}

function loadBun(): Libc {
  const ffi = process.getBuiltinModule("bun:ffi") as unknown as BunFfi;
  const names: Record<Kind, string> = {
    i32: "i32",
    u32: "u32",
    i64: "i64_fast",
    u64: "u64_fast",
    usize: "u64_fast",
    buffer: "ptr",
  };
  const symbols: Record<string, object> = { __errno_location: { args: [], returns: "ptr" } };
  for (const [name, { args, returns }] of Object.entries(signatures)) {
    symbols[name] = { args: args.map((kind) => names[kind]), returns: names[returns] };
  }
  const library = firstLibc((file) => ffi.dlopen(file, symbols));
  const location = library.symbols["__errno_location"] as unknown as () => number;
  return {
    call: library.symbols,
    errno: () => ffi.read.i32(location(), 0),
    address: (buffer) => BigInt(ffi.ptr(buffer)),
  };
}

function loadDeno(): Libc {
  const ffi = (globalThis as unknown as { Deno: DenoFfi }).Deno;
  const symbols: Record<string, object> = {
    __errno_location: { parameters: [], result: "pointer" },
  };
  for (const [name, { args, returns }] of Object.entries(signatures)) {
    symbols[name] = { parameters: args, result: returns };
  }
  const library = firstLibc((file) => ffi.dlopen(file, symbols));
  const location = library.symbols["__errno_location"] as unknown as () => object;
  return {
    call: library.symbols,
    errno: () => new ffi.UnsafePointerView(location()).getInt32(),
    address: (buffer) => ffi.UnsafePointer.value(ffi.UnsafePointer.of(buffer)),
  };
}

// Reversed, so that of two names the first one stays: EAGAIN, not EWOULDBLOCK.
const errnoNames = new Map(
  Object.entries(constants.errno)
    .toReversed()
    .map(([name, errno]) => [errno, name]),
);

/** A failed system call: `code` is errno's name, as node:fs has it. */
function failure(call: string, errno: number, subject: string): NodeJS.ErrnoException {
  const code = errnoNames.get(errno) ?? `errno ${errno}`;
  const error: NodeJS.ErrnoException = new Error(`${code}: ${call} ${subject}`.trim());
  error.code = code;
  error.errno = -errno;
  error.syscall = call;
  return error;
}

/** Calls a function that answers -1 on failure; throws with errno's name as `code`. */
function check(name: keyof typeof signatures, subject: string, ...args: Value[]): number {
  const { call, errno } = libc();
  const result = Number(call[name](...args));
  if (result === -1) throw failure(name, errno(), subject);
  return result;
}

function z(text: string): Uint8Array {
  if (text.includes("\0")) throw new Error(`a NUL byte in ${JSON.stringify(text)}`);
  return Buffer.from(`${text}\0`);
}

export const MS_RDONLY = 1;
export const MS_NOSUID = 2;
export const MS_NODEV = 4;
export const MS_NOEXEC = 8;
export const MS_REMOUNT = 32;
export const MS_BIND = 4096;
export const MS_REC = 16384;
export const MS_UNBINDABLE = 1 << 17;
export const MS_PRIVATE = 1 << 18;
export const MS_SLAVE = 1 << 19;
export const MS_SHARED = 1 << 20;
export const MNT_DETACH = 2;
export const UMOUNT_NOFOLLOW = 8;

/** mount(2). data is the file system's own option string. */
export function mount(
  source: string,
  target: string,
  type: string,
  flags: number,
  data = "",
): void {
  check("mount", target, z(source), z(target), z(type), flags, data === "" ? null : z(data));
}

/** umount2(2), never through a symlink. */
export function unmount(target: string, flags = 0): void {
  check("umount2", target, z(target), flags | UMOUNT_NOFOLLOW);
}

export function mkfifo(path: string, mode: number): void {
  check("mkfifo", path, z(path), mode);
}

/** mknod(2): mode holds the type (S_IFCHR…) too; major and minor as the kernel counts them. */
export function mknod(path: string, mode: number, major: number, minor: number): void {
  const [high, low] = [BigInt(major), BigInt(minor)];
  // glibc's makedev: 32 bits of each, interleaved.
  const device =
    ((high & 0xfffff000n) << 32n) |
    ((high & 0xfffn) << 8n) |
    ((low & 0xffffff00n) << 12n) |
    (low & 0xffn);
  check("mknod", path, z(path), mode, device);
}

/** chroot(2) of this whole process, with the working directory moved to its new root. */
export function chroot(path: string): void {
  check("chroot", path, z(path));
  process.chdir("/");
}

/** Leaves a chroot through a descriptor of the folder that was the root before. */
export function leaveChroot(rootFd: number): void {
  check("fchdir", `descriptor ${rootFd}`, rootFd);
  check("chroot", ".", z("."));
  process.chdir("/");
}

export function lsetxattr(path: string, name: string, value: Uint8Array): void {
  // bun:ffi takes no pointer of an empty array.
  const bytes = value.length === 0 ? new Uint8Array(1) : value;
  check("lsetxattr", `${name} on ${path}`, z(path), z(name), bytes, value.length, 0);
}

/** The attribute's value, or undefined where there is none. */
export function lgetxattr(path: string, name: string): Uint8Array | undefined {
  const value = new Uint8Array(65536);
  try {
    const length = check("lgetxattr", `${name} of ${path}`, z(path), z(name), value, value.length);
    return value.subarray(0, length);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENODATA") return undefined;
    throw error;
  }
}

/** Writes back the whole file system that holds fd. */
export function syncfs(fd: number): void {
  check("syncfs", `descriptor ${fd}`, fd);
}

/** Takes an exclusive lock that lasts as long as the open file; false when somebody has it. */
export function tryLock(fd: number): boolean {
  const LOCK_EX = 2;
  const LOCK_NB = 4;
  try {
    check("flock", `descriptor ${fd}`, fd, LOCK_EX | LOCK_NB);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EAGAIN") return false;
    throw error;
  }
}

/** Orphans among this process's descendants become its children (prctl(2), PR_SET_CHILD_SUBREAPER). */
export function becomeSubreaper(): void {
  check("prctl", "PR_SET_CHILD_SUBREAPER", 36, 1, 0, 0, 0);
}

export type WaitStatus = { pid: number; exitCode: number; signal: number };

/**
 * Reaps one known child without waiting: undefined while it runs. A signal n counts as exit code 128 + n.
 * Only ever by pid: to wait for any child would take those that the engine waits for itself.
 */
export function reap(pid: number): WaitStatus | undefined {
  const WNOHANG = 1;
  const status = new Int32Array(1);
  const got = check("waitpid", `pid ${pid}`, pid, new Uint8Array(status.buffer), WNOHANG);
  if (got === 0) return undefined;
  const signal = status[0]! & 0x7f;
  return { pid, signal, exitCode: signal === 0 ? (status[0]! >> 8) & 0xff : 128 + signal };
}

/** Sets a FIFO's or pipe's capacity in bytes; the kernel may refuse (EPERM above its limit). */
export function setPipeSize(fd: number, bytes: number): void {
  const F_SETPIPE_SZ = 1031;
  check("fcntl", `F_SETPIPE_SZ on descriptor ${fd}`, fd, F_SETPIPE_SZ, bytes);
}

const O_CLOEXEC = 0o2000000;
const O_NONBLOCK = 0o4000;
const O_RDWR = 2;
const F_SETFL = 4;

/** An anonymous pipe, both ends closed on exec, the reading end not blocking. */
export function pipe(): { readFd: number; writeFd: number } {
  const fds = new Int32Array(2);
  check("pipe2", "", new Uint8Array(fds.buffer), O_CLOEXEC);
  check("fcntl", "O_NONBLOCK", fds[0]!, F_SETFL, O_NONBLOCK);
  return { readFd: fds[0]!, writeFd: fds[1]! };
}

const AF_UNIX = 1;
const SOCK_STREAM = 1;

/** A unix socket that listens at path; accepting from it never waits. */
export function listenUnix(path: string): number {
  const address = new Uint8Array(110); // struct sockaddr_un: family, then the path
  const bytes = z(path);
  if (bytes.length > address.length - 2) throw new Error(`socket path too long: ${path}`);
  address[0] = AF_UNIX;
  address.set(bytes, 2);
  const fd = check("socket", path, AF_UNIX, SOCK_STREAM | O_CLOEXEC | O_NONBLOCK, 0);
  try {
    check("bind", path, fd, address, address.length);
    check("listen", path, fd, 1);
    return fd;
  } catch (error) {
    closeSync(fd);
    throw error;
  }
}

/**
 * Takes the one descriptor that a peer, connected to a listening socket, has sent (SCM_RIGHTS); reads
 * from it do not wait. @throws when nobody has sent one.
 */
export function receiveDescriptor(listener: number): number {
  const connection = check("accept4", "", listener, null, null, O_CLOEXEC | O_NONBLOCK);
  try {
    const { address } = libc();
    const data = new Uint8Array(4096);
    const control = new Uint8Array(64);
    const vector = new BigUint64Array([address(data), BigInt(data.length)]);
    // struct msghdr on 64-bit Linux: name, namelen, iov, iovlen, control, controllen, flags.
    const iov = address(new Uint8Array(vector.buffer));
    const length = BigInt(control.length);
    const header = new BigUint64Array([0n, 0n, iov, 1n, address(control), length, 0n]);
    const MSG_CMSG_CLOEXEC = 0x40000000;
    check("recvmsg", "", connection, new Uint8Array(header.buffer), MSG_CMSG_CLOEXEC);
    const view = new DataView(control.buffer);
    // struct cmsghdr: len, level, type; then the descriptor.
    const SCM_RIGHTS = 1;
    if (header[5]! < 20n || view.getInt32(12, true) !== SCM_RIGHTS) {
      throw new Error("the peer has sent no descriptor");
    }
    const fd = view.getInt32(16, true);
    check("fcntl", "O_NONBLOCK", fd, F_SETFL, O_NONBLOCK | O_RDWR);
    return fd;
  } finally {
    closeSync(connection);
  }
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

/** Readiness of many descriptors (epoll(7), level-triggered). */
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
    view.setUint32(0, 1, true); // EPOLLIN
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
