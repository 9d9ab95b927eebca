// Who the OOM killer took from. A container's own counter tells, as long as its cgroup is there: under
// systemd a scope goes with its last process, in two of three cases before anybody can read it. The
// pod's counter stays and counts everything below it (v2), so what no other container of the pod
// accounts for was this one's.
import { type CgroupPaths, oomKills } from "./cgroup.ts";

type ReadKills = (paths: CgroupPaths) => bigint | undefined;

/** The OOM kills of one pod's containers. Everything is synchronous, see oomKills(). */
export class OomLedger {
  readonly #pod: CgroupPaths;
  readonly #read: ReadKills;
  /** Running containers, with the last count seen of each. */
  readonly #running = new Map<string, { paths: CgroupPaths; kills: bigint }>();
  /** Kills in the pod that belong to none of the running containers. */
  #settled: bigint | undefined;

  /** @param pod the pod's cgroup, which outlives its containers' */
  constructor(pod: CgroupPaths, read: ReadKills = oomKills) {
    this.#pod = pod;
    this.#read = read;
  }

  /** To be called when the cgroup exists, best before the container's process runs. */
  started(containerId: string, paths: CgroupPaths): void {
    const kills = this.#read(paths) ?? 0n;
    // Older containers' kills, before this ledger or of a pod's earlier attempt, are nobody's here.
    this.#settled = (this.#settled ?? this.#read(this.#pod) ?? 0n) - kills;
    this.#running.set(containerId, { paths, kills });
  }

  /** The container's kills, once it has ended; 0 for one that is not known. */
  exited(containerId: string): bigint {
    const own = this.#running.get(containerId);
    if (own === undefined) return 0n;
    this.#running.delete(containerId);
    const kills = this.#read(own.paths) ?? this.#unaccounted(own.kills);
    this.#settled = (this.#settled ?? 0n) + kills;
    return kills;
  }

  #unaccounted(atLeast: bigint): bigint {
    let rest = (this.#read(this.#pod) ?? 0n) - (this.#settled ?? 0n);
    for (const other of this.#running.values()) {
      other.kills = this.#read(other.paths) ?? other.kills;
      rest -= other.kills;
    }
    return rest > atLeast ? rest : atLeast;
  }
}
