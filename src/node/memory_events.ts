// Reads a container's OOM counters (cgroup v2, memory.events) at each change, because systemd may remove
// the scope before its exit is handled. The kernel signals a change before the victim dies.
//
// A thread that waits in epoll reads the counters; other threads get the last values through shared memory.
import { constants, readSync } from "node:fs";
import { join } from "node:path";
import { errnoOf } from "../base/errors.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { type CgroupPaths, parseOomKills } from "./cgroup.ts";
import { parseKeyed } from "./cgroup_file.ts";

const bytesMax = 4_096;

/** Opens the file for MemoryCounts.read(); EPOLLPRI signals a change. undefined: no such file (v1). */
export function openMemoryEvents({ unified }: CgroupPaths): Descriptor | undefined {
  if (unified === undefined) return undefined;
  try {
    return Descriptor.open(join(unified, "memory.events"), constants.O_RDONLY);
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return undefined; // removed already, or no memory controller
    throw error;
  }
}

/** The counters of one cgroup in memory that threads share. */
export class MemoryCounts {
  readonly shared: SharedArrayBuffer;
  readonly #values: BigInt64Array;

  constructor(shared = new SharedArrayBuffer(16)) {
    this.shared = shared;
    this.#values = new BigInt64Array(shared);
  }

  /** How often the limit of this cgroup or one below it was hit with nothing left to reclaim. */
  get limitHits(): bigint {
    return Atomics.load(this.#values, 0);
  }

  /** Processes killed by the kernel. */
  get kills(): bigint {
    return Atomics.load(this.#values, 1);
  }

  /** Updates the counters; those of a removed cgroup keep their last values. */
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

/** A watch on one cgroup. */
export type MemoryWatch = { counts: Pick<MemoryCounts, "limitHits" | "kills">; close(): void };
