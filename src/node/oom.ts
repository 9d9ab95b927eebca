// Attributes OOM kills to containers. The sources, in order:
//  - the container's own counter; systemd removes a scope with its last process, in two of three cases before
//    the counter can be read;
//  - its counters as read at their last change (memory_events.ts), which may miss the final one;
//  - the pod's counter, which remains and includes all cgroups below it (v2): kills that the pod's other
//    containers do not account for were this container's;
//  - the kernel log, which names killed processes (v1, a removed slice, two scopes removed at once).
import { dirname } from "node:path";
import { type CgroupPaths, oomKills } from "./cgroup.ts";
import { readVictims, type Victim } from "./kernel_log.ts";
import type { MemoryWatch } from "./memory_events.ts";
import type { OomLimit } from "../state/exit.ts";
import { LimitWatches, type LimitWatch } from "./oom_limit.ts";

type Sources = {
  kills: (paths: CgroupPaths) => bigint | undefined;
  victims: () => Victim[] | undefined;
  limits: { open(paths: CgroupPaths): LimitWatch };
  changes: (id: string, paths: CgroupPaths) => MemoryWatch | undefined;
};
type Watched = {
  init: Init;
  /** The pod's folder. */
  pod: string;
  paths: CgroupPaths;
  /** The last count seen, and the count when watching began. */
  kills: bigint;
  before: bigint;
  watch: LimitWatch;
  changes?: MemoryWatch;
};
/** A container's first process; its start time in clock ticks since boot. */
type Init = { id: string; pid: number; pidStartTime: string };

/** Tells whether an exit was an OOM kill, and if known, whose limit caused it. */
export type OomEnd = { oomKilled: boolean; oomLimit?: OomLimit };

type Kills = { kills: bigint; limit?: OomLimit };

/** USER_HZ is 100 on all supported architectures. */
const usPerTick = 10_000;
/** Maximum difference between the log's clock and process start times. */
const slackUs = 1_000_000;

/** Counts OOM kills by container. All methods are synchronous, see oomKills(). */
export class OomLedger {
  readonly #sources: Sources;
  readonly #running = new Map<string, Watched>();
  /** By pod folder: kills in the pod's count that belong to none of its running containers. */
  readonly #attributed = new Map<string, bigint>();

  constructor(sources: Partial<Sources> = {}) {
    this.#sources = {
      kills: oomKills,
      victims: readVictims,
      limits: new LimitWatches(),
      changes: () => undefined,
      ...sources,
    };
  }

  /** Call this once the cgroup exists, preferably before the container's process runs. */
  started({ id, pid, pidStartTime }: Init, paths: CgroupPaths): void {
    const watch = this.#sources.limits.open(paths);
    const changes = this.#sources.changes(id, paths);
    const kills = this.#sources.kills(paths) ?? 0n;
    const pod = dirname(paths["unified"] ?? paths["memory"] ?? "");
    // Earlier kills in the pod (of an earlier attempt or monitor) belong to no running container.
    this.#attributed.set(pod, (this.#attributed.get(pod) ?? this.#podKills(pod) ?? 0n) - kills);
    const init = { id, pid, pidStartTime }; // not the caller's whole record
    this.#running.set(id, { init, pod, paths, kills, before: kills, watch, changes });
  }

  /**
   * Tells whether a container was OOM-killed: the kernel killed a process in its cgroup and its first process
   * exited non-zero. Returns false for an unknown container.
   */
  ended(id: string, exitCode: number): OomEnd {
    const own = this.#running.get(id);
    if (own === undefined) return { oomKilled: false };
    this.#running.delete(id);
    const count = this.#sources.kills(own.paths);
    const found: Kills = count === undefined ? this.#killsOfRemoved(own) : { kills: count };
    const { kills, limit } = found;
    // After the last container, started() begins with the pod's count at that time.
    if (this.#others(own.pod).length === 0) this.#attributed.delete(own.pod);
    else this.#attributed.set(own.pod, (this.#attributed.get(own.pod) ?? 0n) + kills);
    const oomKilled = kills > 0n && exitCode !== 0;
    const isNew = oomKilled && kills > own.before;
    const ownLimit = hitOwnLimit(own) ? "container" : undefined;
    const oomLimit = isNew ? (limit ?? ownLimit ?? own.watch.limit()) : undefined;
    own.watch.close();
    own.changes?.close();
    return { oomKilled, ...(oomLimit === undefined ? {} : { oomLimit }) };
  }

  /** Estimates the kills of a container whose cgroup has been removed. */
  #killsOfRemoved(own: Watched): Kills {
    own.kills = lastSeen(own);
    const pod = this.#podKills(own.pod);
    let rest = (pod ?? 0n) - (this.#attributed.get(own.pod) ?? 0n);
    const removed: Watched[] = [];
    for (const other of this.#others(own.pod)) {
      const kills = this.#sources.kills(other.paths);
      if (kills === undefined) removed.push(other);
      other.kills = kills ?? lastSeen(other);
      rest -= other.kills;
    }
    if (pod !== undefined && removed.length === 0) return { kills: max(rest, own.kills) };
    // The rest may belong to any of the removed cgroups.
    if (own.kills > own.before) return { kills: own.kills };
    if (hitOwnLimit(own)) return { kills: own.kills + 1n };
    const victims = this.#sources.victims() ?? [];
    const victim = victimOf(own, victims);
    if (victim !== undefined) {
      return { kills: own.kills + 1n, ...(victim.byCgroup ? {} : { limit: "node" }) };
    }
    for (const other of removed) if (victimOf(other, victims) !== undefined) rest--;
    return { kills: rest > own.kills ? own.kills + 1n : own.kills };
  }

  #others(pod: string): Watched[] {
    return [...this.#running.values()].filter((container) => container.pod === pod);
  }

  /** Returns undefined on v1, whose counters exclude child cgroups, and for a removed slice. */
  #podKills(pod: string): bigint | undefined {
    return this.#sources.kills({ unified: pod });
  }
}

function lastSeen({ kills, changes }: Watched): bigint {
  return max(kills, changes?.counts.kills ?? 0n);
}

function hitOwnLimit({ changes }: Watched): boolean {
  return (changes?.counts.limitHits ?? 0n) > 0n;
}

function victimOf({ init }: Watched, victims: Victim[]): Victim | undefined {
  const sinceUs = Number(init.pidStartTime) * usPerTick - slackUs;
  return victims.findLast(({ pid, atUs }) => pid === init.pid && atUs >= sinceUs);
}

function max(a: bigint, b: bigint): bigint {
  return a > b ? a : b;
}
