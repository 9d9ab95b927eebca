// Calls libc functions, through bun:ffi or Deno.dlopen; by name and never by syscall number, because arm64 is
// a target. No other file loads a native symbol.
import { constants } from "node:os";
import { quoted } from "../base/text.ts";

type Kind = "i32" | "u32" | "i64" | "u64" | "usize" | "buffer";
type Value = number | bigint | Uint8Array | null;
type Native = (...args: Value[]) => number | bigint;
type Signatures = Record<string, { args: readonly Kind[]; returns: Kind }>;
type Name = keyof typeof signatures | keyof typeof newer;

const signatures = {
  mount: { args: ["buffer", "buffer", "buffer", "u64", "buffer"], returns: "i32" },
  umount2: { args: ["buffer", "i32"], returns: "i32" },
  mkfifo: { args: ["buffer", "u32"], returns: "i32" },
  chroot: { args: ["buffer"], returns: "i32" },
  fchdir: { args: ["i32"], returns: "i32" },
  lsetxattr: { args: ["buffer", "buffer", "buffer", "usize", "i32"], returns: "i32" },
  lgetxattr: { args: ["buffer", "buffer", "buffer", "usize"], returns: "i64" },
  llistxattr: { args: ["buffer", "buffer", "usize"], returns: "i64" },
  lremovexattr: { args: ["buffer", "buffer"], returns: "i32" },
  utimensat: { args: ["i32", "buffer", "buffer", "i32"], returns: "i32" },
  syncfs: { args: ["i32"], returns: "i32" },
  flock: { args: ["i32", "i32"], returns: "i32" },
  prctl: { args: ["i32", "u64", "u64", "u64", "u64"], returns: "i32" },
  waitid: { args: ["i32", "u32", "buffer", "i32"], returns: "i32" },
  waitpid: { args: ["i32", "buffer", "i32"], returns: "i32" },
  sigprocmask: { args: ["i32", "buffer", "buffer"], returns: "i32" },
  setpriority: { args: ["i32", "i32", "i32"], returns: "i32" },
  sched_setscheduler: { args: ["i32", "i32", "buffer"], returns: "i32" },
  setpgid: { args: ["i32", "i32"], returns: "i32" },
  getrlimit: { args: ["i32", "buffer"], returns: "i32" },
  setrlimit: { args: ["i32", "buffer"], returns: "i32" },
  madvise: { args: ["u64", "usize", "i32"], returns: "i32" },
  execve: { args: ["buffer", "buffer", "buffer"], returns: "i32" },
  quotactl: { args: ["i32", "buffer", "i32", "buffer"], returns: "i32" },
  ioctl: { args: ["i32", "u64", "buffer"], returns: "i32" },
  fcntl: { args: ["i32", "i32", "i64"], returns: "i32" },
  poll: { args: ["buffer", "u64", "i32"], returns: "i32" },
  read: { args: ["i32", "buffer", "usize"], returns: "i64" },
  write: { args: ["i32", "buffer", "usize"], returns: "i64" },
  writev: { args: ["i32", "buffer", "i32"], returns: "i64" },
  tee: { args: ["i32", "i32", "usize", "u32"], returns: "i64" },
  splice: { args: ["i32", "buffer", "i32", "buffer", "usize", "u32"], returns: "i64" },
  pipe2: { args: ["buffer", "i32"], returns: "i32" },
  eventfd: { args: ["u32", "i32"], returns: "i32" },
  socket: { args: ["i32", "i32", "i32"], returns: "i32" },
  bind: { args: ["i32", "buffer", "u32"], returns: "i32" },
  listen: { args: ["i32", "i32"], returns: "i32" },
  connect: { args: ["i32", "buffer", "u32"], returns: "i32" },
  accept4: { args: ["i32", "buffer", "buffer", "i32"], returns: "i32" },
  shutdown: { args: ["i32", "i32"], returns: "i32" },
  getsockname: { args: ["i32", "buffer", "buffer"], returns: "i32" },
  getsockopt: { args: ["i32", "i32", "i32", "buffer", "buffer"], returns: "i32" },
  setsockopt: { args: ["i32", "i32", "i32", "buffer", "u32"], returns: "i32" },
  sendmsg: { args: ["i32", "buffer", "i32"], returns: "i64" },
  recvmsg: { args: ["i32", "buffer", "i32"], returns: "i64" },
  epoll_create1: { args: ["i32"], returns: "i32" },
  epoll_ctl: { args: ["i32", "i32", "i32", "buffer"], returns: "i32" },
  epoll_wait: { args: ["i32", "buffer", "i32", "i32"], returns: "i32" },
} as const satisfies Signatures;

/** Functions newer than glibc 2.17. Where one is missing, its call fails with ENOSYS and callers fall back. */
const newer = {
  mknod: { args: ["buffer", "u32", "u64"], returns: "i32" }, // glibc 2.33; before, __xmknod
  __xmknod: { args: ["i32", "buffer", "u32", "buffer"], returns: "i32" },
  pidfd_open: { args: ["i32", "u32"], returns: "i32" },
  open_tree: { args: ["i32", "buffer", "u32"], returns: "i32" },
  move_mount: { args: ["i32", "buffer", "i32", "buffer", "u32"], returns: "i32" },
  fsopen: { args: ["buffer", "u32"], returns: "i32" },
  fsconfig: { args: ["i32", "u32", "buffer", "buffer", "i32"], returns: "i32" },
  fsmount: { args: ["i32", "u32", "u32"], returns: "i32" },
  mount_setattr: { args: ["i32", "buffer", "u32", "buffer", "usize"], returns: "i32" },
} as const satisfies Signatures;

/** Functions that every libc must have; a test compares them with glibc 2.17. */
export const required: readonly string[] = ["__errno_location", ...Object.keys(signatures)];

type Libc = {
  call: Record<keyof typeof signatures, Native> & Partial<Record<keyof typeof newer, Native>>;
  /**
   * This thread's errno, to be read right after the call that failed.
   *
   * Decision: it is read as memory, not by a function call. The engine may allocate for a function's first
   * call (also again, because it discards unused code), then collect garbage and open /proc/self/statm: in a
   * chroot that fails and sets errno to ENOENT.
   */
  errno: Int32Array;
  /** A buffer's address, for structures with pointers. */
  address: (buffer: Uint8Array) => bigint;
};

type BunFfi = {
  dlopen(file: string, symbols: object): { symbols: Record<string, (...args: unknown[]) => never> };
  toArrayBuffer(pointer: number, offset: number, length: number): ArrayBuffer;
  ptr(buffer: Uint8Array): number;
};
type DenoFfi = {
  dlopen(file: string, symbols: object): { symbols: Record<string, (...args: unknown[]) => never> };
  UnsafePointerView: { getArrayBuffer(pointer: object, length: number): ArrayBuffer };
  UnsafePointer: { of(buffer: Uint8Array): object; value(pointer: object): bigint };
};

const errnoBytes = 4;

let loaded: Libc | undefined;

/** Opens libc at its first use: commands that only use gRPC do without. */
export function libc(): Libc {
  loaded ??= "Deno" in globalThis ? loadDeno() : loadBun();
  return loaded;
}

/** glibc, then musl's loader, which contains musl's libc. */
const libcFiles = [
  "libc.so.6",
  `/lib/ld-musl-${process.arch === "arm64" ? "aarch64" : "x86_64"}.so.1`,
];

const inEveryLibc = ["__errno_location"];

/** Opens the libc with all named functions. @throws with the names of missing functions, or of missing files. */
export function openLibc<Library>(
  open: (file: string, functions: readonly string[]) => Library,
  functions: readonly string[],
  files: readonly string[] = libcFiles,
): { library: Library; file: string } {
  const opens = (file: string, names: readonly string[]) => {
    try {
      return { library: open(file, names), file };
    } catch {
      return undefined;
    }
  };
  const file = files.find((name) => opens(name, inEveryLibc) !== undefined);
  if (file === undefined) {
    throw new Error(`cannot load a libc: neither ${files.join(" nor ")} can be opened`);
  }
  const bound = opens(file, functions);
  if (bound !== undefined) return bound;
  const missing = functions.filter((name) => opens(file, [name]) === undefined);
  throw new Error(
    `the libc ${file} does not have ${missing.join(", ")}: isulad-ts needs glibc 2.17 or later, or musl`,
  );
}

function loadBun(): Libc {
  const ffi = process.getBuiltinModule("bun:ffi") as unknown as BunFfi;
  const renamed: Partial<Record<Kind, string>> = {
    i64: "i64_fast",
    u64: "u64_fast",
    usize: "u64_fast",
    buffer: "ptr",
  };
  const bunKind = (kind: Kind) => renamed[kind] ?? kind;
  const symbols: Record<string, object> = { __errno_location: { args: [], returns: "ptr" } };
  for (const [name, { args, returns }] of Object.entries({ ...signatures, ...newer })) {
    symbols[name] = { args: args.map(bunKind), returns: bunKind(returns) };
  }
  const open = (file: string, names: readonly string[]) =>
    ffi.dlopen(file, Object.fromEntries(names.map((name) => [name, symbols[name]])));
  const { library, file } = openLibc(open, required);
  const location = (library.symbols["__errno_location"] as unknown as () => number)();
  const call = { ...library.symbols } as unknown as Libc["call"];
  for (const name of Object.keys(newer) as (keyof typeof newer)[]) {
    try {
      call[name] = open(file, [name]).symbols[name] as unknown as Native;
    } catch {
      // ENOSYS, see above.
    }
  }
  return {
    call,
    errno: new Int32Array(ffi.toArrayBuffer(location, 0, errnoBytes)),
    address: (buffer) => BigInt(ffi.ptr(buffer)),
  };
}

function loadDeno(): Libc {
  const ffi = (globalThis as unknown as { Deno: DenoFfi }).Deno;
  const symbols: Record<string, object> = {
    __errno_location: { parameters: [], result: "pointer" },
  };
  for (const [name, { args, returns }] of Object.entries({ ...signatures, ...newer })) {
    symbols[name] = { parameters: args, result: returns, optional: name in newer };
  }
  const open = (file: string, names: readonly string[]) =>
    ffi.dlopen(file, Object.fromEntries(names.map((name) => [name, symbols[name]])));
  const { library } = openLibc(open, [...required, ...Object.keys(newer)]);
  const location = library.symbols["__errno_location"] as unknown as () => object;
  return {
    call: library.symbols as unknown as Libc["call"],
    errno: new Int32Array(ffi.UnsafePointerView.getArrayBuffer(location(), errnoBytes)),
    address: (buffer) => ffi.UnsafePointer.value(ffi.UnsafePointer.of(buffer)),
  };
}

// Reversed, so that the first of two names wins: EAGAIN, not EWOULDBLOCK.
const errnoNames = new Map(
  Object.entries(constants.errno)
    .toReversed()
    .map(([name, errno]) => [errno, name]),
);

/** Makes the error of a failed system call; `code` is errno's name, as in node:fs. */
export function failure(call: string, errno: number, subject: string): NodeJS.ErrnoException {
  const code = errnoNames.get(errno) ?? `errno ${errno}`;
  const error: NodeJS.ErrnoException = new Error(`${code}: ${call} ${subject}`.trim());
  error.code = code;
  error.errno = -errno;
  error.syscall = call;
  return error;
}

/** Calls a function that returns -1 on failure; throws with errno's name as `code`. */
export function check(name: Name, subject: string, ...args: Value[]): number {
  const { call, errno } = libc();
  const native = call[name];
  if (!native) throw failure(name, constants.errno.ENOSYS, subject);
  const result = native(...args);
  const number = errno[0]!;
  if (Number(result) === -1) throw failure(name, number, subject);
  return Number(result);
}

/** Converts to a C string. */
export function z(text: string | Buffer): Uint8Array {
  if (text.includes("\0")) throw new Error(`a NUL byte in ${quoted(String(text))}`);
  if (typeof text === "string") return Buffer.from(`${text}\0`);
  return Buffer.concat([text, Buffer.alloc(1)]);
}

export const O_CLOEXEC = 0o2000000;
export const O_NONBLOCK = 0o4000;
