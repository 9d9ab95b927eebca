// Marks a process so that all its descendants can be found, by a resource limit that every fork copies.
//
// Decision: the mark is the soft limit RLIMIT_RTTIME, set to more than 140 years. It restricts nothing,
// processes that leave their session, parent and environment still inherit it, it costs two system calls, and
// it needs nothing from the OCI runtime, the cgroup version or the cgroup driver.
// - A cgroup for each exec (`runc exec --cgroup`) changes what programs see: under v2, for example, a JVM before
//   24 looks for its memory limit in the cgroup of /proc/self/cgroup, and finds none there. The kubelet's
//   cAdvisor would also take each probe for a new container, and crun 1.8 refuses a hybrid host.
// - `env -i` removes an environment variable; setsid(2) and a double fork change session and parent.
// A process may raise its soft limit again, and is then found only by session and parent (monitor/exec_tree.ts).
import { randomBytes } from "node:crypto";
import { softLimit } from "./process.ts";
import { check } from "./libc.ts";

const RLIMIT_RTTIME = 15;
/** Microseconds. Both fit a JS number without loss. */
const markMin = 2 ** 52;
const markRange = 2 ** 48;

/** Makes a new mark; undefined where this process's hard limit is too low for marks. */
export function newMark(): number | undefined {
  const [, hard] = ownLimit();
  if (hard < BigInt(markMin + markRange)) return undefined;
  return markMin + randomBytes(6).readUIntBE(0, 6);
}

/** Starts a process that has the mark from its first moment; `spawn` must be synchronous. */
export function withMark<T>(mark: number | undefined, spawn: () => T): T {
  if (mark === undefined) return spawn();
  const own = ownLimit();
  setOwnLimit(new BigUint64Array([BigInt(mark), own[1]]));
  try {
    return spawn();
  } finally {
    setOwnLimit(own);
  }
}

/**
 * Returns a mark as an entry of an OCI process's rlimits (runtime-spec, config.md#posix-process), in JSON: the
 * limits are too large for JS numbers.
 */
export function markAsRlimit(mark: number): string {
  return `{"type":"RLIMIT_RTTIME","soft":${mark},"hard":${ownLimit()[1]}}`;
}

/** Returns the soft limit of a process, which is its mark if it has one; undefined: no limit, or it has ended. */
export function markOf(pid: number): number | undefined {
  return softLimit(pid, "realtime timeout");
}

/** Soft and hard limit; the largest value means no limit. */
type Limit = BigUint64Array & { 0: bigint; 1: bigint };

function ownLimit(): Limit {
  const limit = new BigUint64Array(2) as Limit;
  check("getrlimit", "RLIMIT_RTTIME", RLIMIT_RTTIME, new Uint8Array(limit.buffer));
  return limit;
}

function setOwnLimit(limit: BigUint64Array): void {
  check("setrlimit", "RLIMIT_RTTIME", RLIMIT_RTTIME, new Uint8Array(limit.buffer));
}
