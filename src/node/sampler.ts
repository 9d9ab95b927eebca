// One sampler of cgroups for all who ask: the CRI calls, its metrics, the person's commands.
//
// Decision: a figure is read when somebody asks and the last reading is older than freshMs, so that any
// number of consumers costs one reading a second. After a question, a timer goes on reading for a while:
// a kubelet, which asks every ten seconds, then gets the CPU rate of these ten seconds. When nobody asks
// any more it ends, and everything is forgotten.
import { Slices } from "../base/slices.ts";
import type { CgroupPaths } from "./cgroup.ts";
import { type CgroupUsage, readUsage } from "./cgroup_stats.ts";

/** Two readings of one cgroup are at least so far apart; also a rate's shortest time. */
const freshMs = 1_000;
const everyMs = 10_000;
/** Readings go on for so long after the last question. */
const idleMs = 60_000;

/** processes: they are counted too, which costs a file for each cgroup below. */
export type Cgroup = { id: string; paths: CgroupPaths; processes?: boolean };

/** One reading, kept until the next one. */
export type Sample = CgroupUsage & {
  /** CPU time a second between this reading and the one before, in nanoseconds. */
  nanoCores?: bigint;
};

type Entry = { sample: Sample; monotonicMs: number };

export class Sampler implements Disposable {
  readonly #known: () => Cgroup[];
  readonly #entries = new Map<string, Entry>();
  #timer: ReturnType<typeof setInterval> | undefined;
  #askedMs = 0;
  #reading = false;

  /** known: every cgroup that somebody may ask for, as things are now. */
  constructor(known: () => Cgroup[]) {
    this.#known = known;
  }

  /** The figures of each cgroup that is there, by id. */
  async sample(cgroups: Cgroup[]): Promise<Map<string, Sample>> {
    this.#askedMs = performance.now();
    this.#timer ??= setInterval(() => void this.#tick(), everyMs).unref();
    return this.#read(cgroups);
  }

  async #read(cgroups: Cgroup[]): Promise<Map<string, Sample>> {
    const samples = new Map<string, Sample>();
    const slices = new Slices();
    for (const cgroup of cgroups) {
      const sample = this.#fresh(cgroup);
      if (sample !== undefined) samples.set(cgroup.id, sample);
      await slices.pause();
    }
    return samples;
  }

  #fresh({ id, paths, processes }: Cgroup): Sample | undefined {
    const before = this.#entries.get(id);
    const monotonicMs = performance.now();
    if (before !== undefined && monotonicMs - before.monotonicMs < freshMs) return before.sample;
    const usage = readUsage(paths, { processes });
    if (usage === undefined) {
      this.#entries.delete(id);
      return undefined;
    }
    const nanoCores = rate(before, usage, monotonicMs);
    const sample = { ...usage, nanoCores };
    this.#entries.set(id, { sample, monotonicMs });
    return sample;
  }

  async #tick(): Promise<void> {
    if (performance.now() - this.#askedMs > idleMs) return this[Symbol.dispose]();
    if (this.#reading) return;
    this.#reading = true;
    try {
      const cgroups = this.#known();
      const ids = new Set(cgroups.map(({ id }) => id));
      for (const id of this.#entries.keys()) if (!ids.has(id)) this.#entries.delete(id);
      await this.#read(cgroups);
    } catch {
      // Whoever asks next meets the same, and is told.
    } finally {
      this.#reading = false;
    }
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
    this.#entries.clear();
  }
}

/** By the clock that nobody sets; undefined where there is nothing to compare with. */
function rate(
  before: Entry | undefined,
  usage: CgroupUsage,
  monotonicMs: number,
): bigint | undefined {
  const [from, to] = [before?.sample.cpuNs, usage.cpuNs];
  // Less than before: the cgroup is another one under the same name.
  if (before === undefined || from === undefined || to === undefined || to < from) return undefined;
  const passedUs = BigInt(Math.round((monotonicMs - before.monotonicMs) * 1000));
  return passedUs <= 0n ? undefined : ((to - from) * 1_000_000n) / passedUs;
}
