// Who the OOM killer took from. A container's own counter tells, as long as its cgroup is there: under
// systemd a scope goes with its last process, in two of three cases before anybody can read it then.
// What was read at its changes (memory_events.ts) stays, and may lack the last one. The pod's counter
// stays and counts everything below it (v2), so what no other container of the pod
// accounts for was this one's. Where that tells nothing either (v1, a slice that is gone, two scopes of
// a pod that went at once), the kernel's log names the processes that were killed.
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
  changes: (paths: CgroupPaths) => MemoryWatch | undefined;
};
type Container = {
  init: Init;
  pod: string;
  paths: CgroupPaths;
  /** Those that were seen, and those of before it was watched. */
  kills: bigint;
  before: bigint;
  watch: LimitWatch;
  changes?: MemoryWatch;
};
/** A container's first process; its start in clock ticks since the boot. */
type Init = { id: string; pid: number; pidStartTime: string };

/** How an end was the kernel's doing; limit: whose it was, where that is known. */
export type OomEnd = { oomKilled: boolean; oomLimit?: OomLimit };

type Kills = { kills: bigint; limit?: OomLimit };

/** USER_HZ: 100 on every architecture that we run on. */
const usPerTick = 10_000;
/** The log's clock and a process's start may differ by that. */
const slackUs = 1_000_000;

/** Counts OOM kills by container. Everything is synchronous, see oomKills(). */
export class OomLedger {
  readonly #sources: Sources;
  /** Running containers, with the last count seen of each. */
  readonly #running = new Map<string, Container>();
  /** By a pod's folder: kills there that belong to none of its running containers. */
  readonly #settled = new Map<string, bigint>();

  constructor(sources: Partial<Sources> = {}) {
    this.#sources = {
      kills: oomKills,
      victims: readVictims,
      limits: new LimitWatches(),
      changes: () => undefined,
      ...sources,
    };
  }

  /** To be called when the cgroup exists, best before the container's process runs. */
  started(init: Init, paths: CgroupPaths): void {
    const watch = this.#sources.limits.open(paths);
    const changes = this.#sources.changes(paths);
    const kills = this.#sources.kills(paths) ?? 0n;
    const pod = dirname(paths["unified"] ?? paths["memory"] ?? "");
    // What the pod counted before, of an earlier attempt or monitor, is nobody's here.
    this.#settled.set(pod, (this.#settled.get(pod) ?? this.#podKills(pod) ?? 0n) - kills);
    const { id, pid, pidStartTime } = init;
    this.#running.set(id, {
      init: { id, pid, pidStartTime },
      pod,
      paths,
      kills,
      before: kills,
      watch,
      changes,
    });
  }

  /**
   * What a container's end was: killed for memory when the kernel took a process of its cgroup and its
   * first one did not end well. Not for one that is not known.
   */
  ended(id: string, exitCode: number): OomEnd {
    const own = this.#running.get(id);
    if (own === undefined) return { oomKilled: false };
    this.#running.delete(id);
    const read = this.#sources.kills(own.paths);
    const found: Kills = read === undefined ? this.#vanished(own) : { kills: read };
    const { kills, limit } = found;
    // With the last one gone the next begins with the pod's count as it is then.
    if (this.#others(own.pod).length === 0) this.#settled.delete(own.pod);
    else this.#settled.set(own.pod, (this.#settled.get(own.pod) ?? 0n) + kills);
    const oomKilled = kills > 0n && exitCode !== 0;
    const met = (own.changes?.counts.limitsMet ?? 0n) > 0n ? "container" : undefined;
    const whose = oomKilled && kills > own.before ? (limit ?? met ?? own.watch.limit()) : undefined;
    own.watch.close();
    own.changes?.close();
    return { oomKilled, ...(whose === undefined ? {} : { oomLimit: whose }) };
  }

  /** Its cgroup is gone. */
  #vanished(own: Container): Kills {
    own.kills = lastSeen(own);
    const pod = this.#podKills(own.pod);
    let rest = (pod ?? 0n) - (this.#settled.get(own.pod) ?? 0n);
    const gone: Container[] = [];
    for (const other of this.#others(own.pod)) {
      const kills = this.#sources.kills(other.paths);
      if (kills === undefined) gone.push(other);
      other.kills = kills ?? lastSeen(other);
      rest -= other.kills;
    }
    if (pod !== undefined && gone.length === 0) return { kills: most(rest, own.kills) };
    // Whose the rest is, the pod does not tell.
    if (own.kills > own.before) return { kills: own.kills };
    if ((own.changes?.counts.limitsMet ?? 0n) > 0n) return { kills: own.kills + 1n };
    const victims = this.#sources.victims() ?? [];
    const victim = victimOf(own, victims);
    if (victim !== undefined) {
      return { kills: own.kills + 1n, ...(victim.byCgroup ? {} : { limit: "node" }) };
    }
    for (const other of gone) if (victimOf(other, victims) !== undefined) rest--;
    return { kills: rest > own.kills ? own.kills + 1n : own.kills };
  }

  #others(pod: string): Container[] {
    return [...this.#running.values()].filter((container) => container.pod === pod);
  }

  /** undefined: it does not count what is below it, or is gone. */
  #podKills(pod: string): bigint | undefined {
    return this.#sources.kills({ unified: pod });
  }
}

/** With what was read at a change. */
function lastSeen({ kills, changes }: Container): bigint {
  return most(kills, changes?.counts.kills ?? 0n);
}

function victimOf({ init }: Container, victims: Victim[]): Victim | undefined {
  const sinceUs = Number(init.pidStartTime) * usPerTick - slackUs;
  return victims.findLast(({ pid, atUs }) => pid === init.pid && atUs >= sinceUs);
}

function most(a: bigint, b: bigint): bigint {
  return a > b ? a : b;
}
