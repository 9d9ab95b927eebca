// Finds whose memory limit caused an OOM kill: the container's own, its pod's, or one above (the node's
// memory, or the kubelet's share for pods).
//
// cgroup v2 counts in memory.events how often a limit was hit with nothing left to reclaim, in the cgroup
// that has the limit and in all above it; memory.events.local counts only the former. v1 has no such
// counter: the kernel signals an eventfd on memory.oom_control for each event in the cgroup or above it.
import { constants } from "node:fs";
import { dirname, join } from "node:path";
import { Descriptor, drainEventfd, eventfd } from "../sys/descriptor.ts";
import { readKernelFile, writeKernelFile } from "../sys/file.ts";
import type { OomLimit } from "../state/exit.ts";
import type { CgroupPaths } from "./cgroup.ts";
import { parseKeyed } from "./cgroup_file.ts";

/** Watches one container, starting before its process runs. */
export type LimitWatch = {
  /** Returns whose limit caused the kills since the start; undefined when the kernel does not provide it. */
  limit(): OomLimit | undefined;
  close(): void;
};

/** Opens watches for many containers; v1 watches of one pod share its eventfds. */
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
        if (!shared[0]!.isOpen || !shared[1]!.isOpen) return undefined;
        const [own = 0, pod = 0, above = 0] = shared.map(
          (events, index) => events.count() - before[index]!,
        );
        return limitV1({ own, pod, above });
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

/** Decides from the events at the container, its pod and the pod's parent; each count includes those above. */
export function limitV1(events: { own: number; pod: number; above: number }): OomLimit {
  if (events.own > events.pod) return "container";
  return events.pod > events.above ? "pod" : "node";
}

/** The "oom" counters of the container, of the pod alone, and of the pod's tree; undefined: no such file. */
export type LimitHits = { own?: bigint; pod?: bigint; podTree?: bigint };

/** Decides from the counters before the container ran and now. */
export function limitV2(before: LimitHits, now: LimitHits): OomLimit | undefined {
  if (now.own !== undefined && now.own > 0n) return "container";
  if (now.pod === undefined || before.pod === undefined) return undefined;
  if (now.pod > before.pod) return "pod";
  // systemd removes a scope with its last process: a hit below the pod was in that scope.
  const isBelow = (now.podTree ?? 0n) > (before.podTree ?? 0n);
  return now.own === undefined && isBelow ? "container" : "node";
}

/** Counts the OOM events of a v1 cgroup and those above it, with a reference count. */
class SharedEvents {
  users = 0;
  readonly #events: Descriptor | undefined;
  #count = 0;

  constructor(folder: string) {
    this.#events = openEvents(folder);
  }

  get isOpen(): boolean {
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

/** Documentation/admin-guide/cgroup-v1/memory.rst, 10; undefined when the kernel does not support it. */
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
  const read = (): LimitHits => ({
    own: oomCount(join(folder, "memory.events")),
    pod: oomCount(join(pod, "memory.events.local")), // since Linux 5.2
    podTree: oomCount(join(pod, "memory.events")),
  });
  const before = read();
  return { limit: () => limitV2(before, read()), close: () => {} };
}

function oomCount(file: string): bigint | undefined {
  const text = readKernelFile(file);
  return text === undefined ? undefined : parseKeyed(text)("oom");
}
