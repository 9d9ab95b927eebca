// What cgroup v2 counts of a container's want of memory (memory.events), read at each change: a scope of
// systemd's may be gone before its end is known, and what was counted with it. The kernel tells of a
// change before the victim dies.
//
// A thread that waits in epoll reads; who asks, in another, takes what it has read last.
import { constants, readSync } from "node:fs";
import { join } from "node:path";
import { errnoOf } from "../base/errors.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { type CgroupPaths, parseOomKills } from "./cgroup.ts";
import { parseKeyed } from "./cgroup_stats.ts";

const bytesMax = 4_096;

/** A descriptor for MemoryCounts.read(), EPOLLPRI when there is news; undefined: there is none (v1). */
export function openMemoryEvents({ unified }: CgroupPaths): Descriptor | undefined {
  if (unified === undefined) return undefined;
  try {
    return Descriptor.open(join(unified, "memory.events"), constants.O_RDONLY);
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return undefined; // ended already, or no memory controller
    throw error;
  }
}

/** Counters of one cgroup that threads share. */
export class MemoryCounts {
  readonly shared: SharedArrayBuffer;
  readonly #values: BigInt64Array;

  constructor(shared = new SharedArrayBuffer(16)) {
    this.shared = shared;
    this.#values = new BigInt64Array(shared);
  }

  /** How often a limit in it, and not one above it, was met with nothing left to reclaim. */
  get limitsMet(): bigint {
    return Atomics.load(this.#values, 0);
  }

  /** Processes that the kernel took. */
  get kills(): bigint {
    return Atomics.load(this.#values, 1);
  }

  /** Reads them anew; of a cgroup that is gone they stay. */
  read({ fd }: Descriptor): void {
    const buffer = Buffer.allocUnsafe(bytesMax);
    try {
      const text = buffer.toString("latin1", 0, readSync(fd, buffer, 0, bytesMax, 0));
      Atomics.store(this.#values, 0, parseKeyed(text)("oom") ?? 0n);
      Atomics.store(this.#values, 1, parseOomKills(text));
    } catch (error) {
      if (errnoOf(error) !== "ENODEV") throw error;
    }
  }
}

/** One cgroup that is watched. */
export type MemoryWatch = {
  counts: Pick<MemoryCounts, "limitsMet" | "kills">;
  close(): void;
};
