// Who the OOM killer took from. A container's own counter tells, as long as its cgroup is there: under
// systemd a scope goes with its last process, in two of three cases before anybody can read it. The
// pod's counter stays and counts everything below it (v2), so what no other container of the pod
// accounts for was this one's.
import { dirname } from "node:path";
import { type CgroupPaths, oomKills } from "./cgroup.ts";

type ReadKills = (paths: CgroupPaths) => bigint | undefined;
type Container = { pod: string; paths: CgroupPaths; kills: bigint };

/** Counts OOM kills by container. Everything is synchronous, see oomKills(). */
export class OomLedger {
  readonly #read: ReadKills;
  /** Running containers, with the last count seen of each. */
  readonly #running = new Map<string, Container>();
  /** By a pod's folder: kills there that belong to none of its running containers. */
  readonly #settled = new Map<string, bigint>();

  constructor(read: ReadKills = oomKills) {
    this.#read = read;
  }

  /** To be called when the cgroup exists, best before the container's process runs. */
  started(containerId: string, paths: CgroupPaths): void {
    const kills = this.#read(paths) ?? 0n;
    const pod = dirname(paths["unified"] ?? paths["memory"] ?? "");
    // What the pod counted before, of an earlier attempt or monitor, is nobody's here.
    this.#settled.set(pod, (this.#settled.get(pod) ?? this.#podKills(pod)) - kills);
    this.#running.set(containerId, { pod, paths, kills });
  }

  /** The container's kills, once it has ended; 0 for one that is not known. */
  exited(containerId: string): bigint {
    const own = this.#running.get(containerId);
    if (own === undefined) return 0n;
    this.#running.delete(containerId);
    const kills = this.#read(own.paths) ?? this.#unaccounted(own);
    // With the last one gone the next begins with the pod's count as it is then.
    if (this.#others(own.pod).length === 0) this.#settled.delete(own.pod);
    else this.#settled.set(own.pod, (this.#settled.get(own.pod) ?? 0n) + kills);
    return kills;
  }

  #unaccounted(own: Container): bigint {
    let rest = this.#podKills(own.pod) - (this.#settled.get(own.pod) ?? 0n);
    for (const other of this.#others(own.pod)) {
      other.kills = this.#read(other.paths) ?? other.kills;
      rest -= other.kills;
    }
    return rest > own.kills ? rest : own.kills;
  }

  #others(pod: string): Container[] {
    return [...this.#running.values()].filter((container) => container.pod === pod);
  }

  #podKills(pod: string): bigint {
    return this.#read({ unified: pod }) ?? 0n;
  }
}
