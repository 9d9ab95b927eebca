// Watches and reaps children by pid, and reads the exit of other processes from their pidfd.
import { constants } from "node:os";
import { errnoOf } from "../base/errors.ts";
import { isEngineChild } from "./children.ts";
import { Descriptor } from "./descriptor.ts";
import { check, failure, libc, z } from "./libc.ts";

/** Makes this process adopt orphans among its descendants (prctl(2), PR_SET_CHILD_SUBREAPER). */
export function becomeSubreaper(): void {
  check("prctl", "PR_SET_CHILD_SUBREAPER", 36, 1, 0, 0, 0);
}

export type WaitStatus = { pid: number; exitCode: number; signal: number };

/**
 * Reaps one known child without blocking: undefined while it runs. A signal n counts as exit code 128 + n.
 * Always by pid: waitpid(-1) would steal the children that the engine waits for. Such a child may have reused
 * the pid of an earlier process, and therefore counts as no child.
 * @throws ECHILD.
 */
export function reap(pid: number): WaitStatus | undefined {
  if (isEngineChild(pid)) throw failure("waitpid", constants.errno.ECHILD, `pid ${pid}`);
  const WNOHANG = 1;
  const status = new Int32Array(1);
  const got = check("waitpid", `pid ${pid}`, pid, new Uint8Array(status.buffer), WNOHANG);
  if (got === 0) return undefined;
  return { pid, ...waitStatus(status[0]!) };
}

/** Reaps a child that may be another process's, or reaped already. */
export function reapIfChild(pid: number): void {
  try {
    reap(pid);
  } catch (error) {
    if (errnoOf(error) !== "ECHILD") throw error;
  }
}

/**
 * Returns how a known child has ended, as reap() does, but leaves it a zombie: if this process is killed, its
 * status is there for the next one.
 * @throws ECHILD.
 */
export function peekExit(pid: number): WaitStatus | undefined {
  if (isEngineChild(pid)) throw failure("waitid", constants.errno.ECHILD, `pid ${pid}`);
  const P_PID = 1;
  const WNOHANG = 1;
  const WEXITED = 4;
  const WNOWAIT = 0x1000000;
  const CLD_EXITED = 1;
  const bytes = new Uint8Array(siginfo.bytes);
  check("waitid", `pid ${pid}`, P_PID, pid, bytes, WNOHANG | WEXITED | WNOWAIT);
  const field = (at: number) => new DataView(bytes.buffer).getInt32(at, true);
  if (field(siginfo.pid) === 0) return undefined;
  const status = field(siginfo.status);
  if (field(siginfo.code) === CLD_EXITED) return { pid, signal: 0, exitCode: status };
  return { pid, signal: status, exitCode: 128 + status };
}

/** siginfo_t of a child that has ended: its size, and where its fields are. */
const siginfo = { bytes: 128, code: 8, pid: 16, status: 24 };

// linux/pidfd.h: struct pidfd_info is 64 bytes, its mask first and the wait status last.
const pidfdInfoBytes = 64;
const PIDFD_GET_INFO = 0xc040ff0bn;
const PIDFD_INFO_EXIT = 8n;

/** Opens a pidfd, which becomes readable when its process ends; undefined: no such process or system call. */
export function openPidfd(pid: number): Descriptor | undefined {
  try {
    return new Descriptor(check("pidfd_open", `pid ${pid}`, pid, 0));
  } catch {
    return undefined;
  }
}

/** Returns how a pidfd's process ended, whoever reaped it; undefined: not reaped, or before Linux 6.15. */
export function exitOfPidfd({ fd: pidfd }: Descriptor): Omit<WaitStatus, "pid"> | undefined {
  const info = new BigUint64Array(pidfdInfoBytes / 8);
  info[0] = PIDFD_INFO_EXIT;
  try {
    const bytes = new Uint8Array(info.buffer);
    check("ioctl", `pidfd ${pidfd}`, pidfd, PIDFD_GET_INFO, bytes);
    if ((info[0] & PIDFD_INFO_EXIT) === 0n) return undefined;
    return waitStatus(new DataView(bytes.buffer).getInt32(pidfdInfoBytes - 4, true));
  } catch {
    return undefined;
  }
}

/** Decodes wait(2)'s status word. */
export function waitStatus(status: number): Omit<WaitStatus, "pid"> {
  const signal = status & 0x7f;
  return { signal, exitCode: signal === 0 ? (status >> 8) & 0xff : 128 + signal };
}

/**
 * Replaces this process's program: pid, children and descriptors without close-on-exec stay. Unblocks all
 * signals, because the engine's mask would be inherited. Returns only by throwing.
 */
export function execve(
  path: string,
  argv: string[],
  env: Record<string, string | undefined>,
): never {
  const SIG_SETMASK = 2;
  const mask = new Uint8Array(128);
  const vars = Object.entries(env).map(([name, value]) => `${name}=${value ?? ""}`);
  const { bytes, starts } = pack([argv, vars]);
  const old = new Uint8Array(128);
  check("sigprocmask", "", SIG_SETMASK, mask, old);
  try {
    check("execve", path, z(path), bytes.subarray(starts[0]), bytes.subarray(starts[1]));
    throw new Error("unreachable");
  } finally {
    check("sigprocmask", "", SIG_SETMASK, old, null);
  }
}

/** Packs lists of C strings for execve into one buffer: null-terminated tables of pointers, then the strings. */
function pack(lists: string[][]): { bytes: Uint8Array; starts: number[] } {
  const texts = lists.map((list) => list.map(z));
  const tableBytes = 8 * texts.reduce((sum, list) => sum + list.length + 1, 0);
  const textBytes = texts.flat().reduce((sum, text) => sum + text.length, 0);
  const bytes = new Uint8Array(tableBytes + textBytes);
  const table = new BigUint64Array(bytes.buffer, 0, tableBytes / 8);
  const base = libc().address(bytes);
  const starts: number[] = [];
  let [entry, at] = [0, tableBytes];
  for (const list of texts) {
    starts.push(entry * 8);
    for (const text of list) {
      bytes.set(text, at);
      table[entry++] = base + BigInt(at);
      at += text.length;
    }
    entry++;
  }
  return { bytes, starts };
}
