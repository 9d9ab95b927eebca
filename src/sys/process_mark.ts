// Marks a process so that all its descendants are found, by a resource limit that every fork copies.
//
// Decision: the mark is the soft limit RLIMIT_RTTIME, set to a value of more than 140 years. It restricts
// nothing, it is inherited by what leaves its session, its parent and its environment, it costs two system
// calls, and it needs nothing from the OCI runtime, the cgroup version or the cgroup driver.
// - A cgroup for each exec (`runc exec --cgroup`) changes what programs see: under v2 a JVM before 24, among
//   others, looks for its memory limit in the cgroup that /proc/self/cgroup names, and finds none there. The
//   kubelet's cAdvisor would also take each probe for a new container, and crun 1.8 refuses a hybrid host.
// - A variable of the environment goes with `env -i`; sessions and parents go with setsid(2) and a double fork.
// A process may raise its soft limit again, and is then only found by session and parent (exec_tree.ts).
import { randomBytes } from "node:crypto";
import { readKernelFile } from "./file.ts";
import { check } from "./libc.ts";

const RLIMIT_RTTIME = 15;
/** Microseconds. Both fit a JS number without loss. */
const markMin = 2 ** 52;
const markRange = 2 ** 48;

/** A new mark; undefined where this process's own hard limit is too low to have marks. */
export function newMark(): number | undefined {
  const [, hard] = ownLimit();
  if (hard < BigInt(markMin + markRange)) return undefined;
  return markMin + randomBytes(6).readUIntBE(0, 6);
}

/** Starts a process that has the mark from its first moment; `spawn` must not wait for anything. */
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

/** The soft limit of a process, which is its mark where it has one; undefined: none, or it has ended. */
export function markOf(pid: number): number | undefined {
  const limits = readKernelFile(`/proc/${pid}/limits`) ?? "";
  const soft = /^Max realtime timeout +(\d+) /m.exec(limits)?.[1];
  return soft === undefined ? undefined : Number(soft);
}

/** Soft and hard limit, of which the largest value means none. */
type Limit = BigUint64Array & { 0: bigint; 1: bigint };

function ownLimit(): Limit {
  const limit = new BigUint64Array(2) as Limit;
  check("getrlimit", "RLIMIT_RTTIME", RLIMIT_RTTIME, new Uint8Array(limit.buffer));
  return limit;
}

function setOwnLimit(limit: BigUint64Array): void {
  check("setrlimit", "RLIMIT_RTTIME", RLIMIT_RTTIME, new Uint8Array(limit.buffer));
}
