// Whose memory limit it was that made the kernel kill: the container's own, its pod's, or one above
// (the node's memory, or what the kubelet leaves to pods).
//
// cgroup v2 counts in memory.events how often a limit was met with nothing left to reclaim, each at the
// cgroup that has the limit and, but for memory.events.local, at all above it. v1 has no such counter:
// an eventfd on memory.oom_control is raised for each such event at the cgroup or above it.
import { constants } from "node:fs";
import { dirname, join } from "node:path";
import { Descriptor, drainEventfd, eventfd } from "../sys/descriptor.ts";
import { readKernelFile, writeKernelFile } from "../sys/file.ts";
import type { OomLimit } from "../state/exit.ts";
import type { CgroupPaths } from "./cgroup.ts";
import { parseKeyed } from "./cgroup_stats.ts";

/** Of one container, from before its process runs. */
export type LimitWatch = {
  /** Of what the kernel killed since; undefined where it does not tell. */
  limit(): OomLimit | undefined;
  close(): void;
};

/** Watches for many containers; those of a pod share what they need to know of it. */
export class LimitWatches {
  readonly #events = new Map<string, SharedEvents>();

  open(paths: CgroupPaths): LimitWatch {
    const { unified, memory } = paths;
    if (unified !== undefined) return watchV2(unified);
    if (memory !== undefined) return this.#watchV1(memory);
    return { limit: () => undefined, close: () => {} };
  }

  #watchV1(folder: string): LimitWatch {
    const folders = [folder, dirname(folder), dirname(dirname(folder))];
    const shared = folders.map((at) => this.#share(at));
    const before = shared.map((events) => events.count());
    return {
      limit: () => {
        if (!shared[0]!.counts || !shared[1]!.counts) return undefined;
        const [own = 0, pod = 0, above = 0] = shared.map(
          (events, index) => events.count() - before[index]!,
        );
        if (own > pod) return "container";
        return pod > above ? "pod" : "node";
      },
      close: () => folders.forEach((at) => this.#release(at)),
    };
  }

  #share(folder: string): SharedEvents {
    const events = this.#events.get(folder) ?? new SharedEvents(folder);
    events.users++;
    this.#events.set(folder, events);
    return events;
  }

  #release(folder: string): void {
    const events = this.#events.get(folder);
    if (events === undefined || --events.users > 0) return;
    this.#events.delete(folder);
    events.close();
  }
}

/** How often a v1 cgroup, or one above it, had no memory left. */
class SharedEvents {
  users = 0;
  readonly #events: Descriptor | undefined;
  #count = 0;

  constructor(folder: string) {
    this.#events = openEvents(folder);
  }

  /** False where the kernel tells nothing. */
  get counts(): boolean {
    return this.#events !== undefined;
  }

  count(): number {
    if (this.#events !== undefined) this.#count += drainEventfd(this.#events);
    return this.#count;
  }

  close(): void {
    this.#events?.close();
  }
}

/** Documentation/admin-guide/cgroup-v1/memory.rst, 10; undefined where the kernel has none of it. */
function openEvents(folder: string): Descriptor | undefined {
  const events = eventfd();
  try {
    using control = Descriptor.open(join(folder, "memory.oom_control"), constants.O_RDONLY);
    writeKernelFile(join(folder, "cgroup.event_control"), `${events.fd} ${control.fd}`);
    return events;
  } catch {
    events.close();
    return undefined;
  }
}

function watchV2(folder: string): LimitWatch {
  const pod = dirname(folder);
  const own = () => met(join(folder, "memory.events"));
  const podOwn = () => met(join(pod, "memory.events.local")); // since Linux 5.2
  const podTree = () => met(join(pod, "memory.events"));
  const before = { podOwn: podOwn(), podTree: podTree() };
  return {
    limit: () => {
      const now = own();
      if (now !== undefined && now > 0n) return "container";
      const podNow = podOwn();
      if (podNow === undefined || before.podOwn === undefined) return undefined;
      if (podNow > before.podOwn) return "pod";
      // A scope goes with its last process; what no limit above met was met in it.
      const below = (podTree() ?? 0n) > (before.podTree ?? 0n);
      return now === undefined && below ? "container" : "node";
    },
    close: () => {},
  };
}

function met(file: string): bigint | undefined {
  const text = readKernelFile(file);
  return text === undefined ? undefined : parseKeyed(text)("oom");
}
