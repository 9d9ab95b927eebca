// One sampler of cgroups for all who ask: the CRI calls, its metrics, the person's commands.
//
// Decision: a figure is read when somebody asks and the last reading is older than freshMs, so that any
// number of consumers costs one reading a second. After a question, a timer goes on reading for a while:
// a kubelet, which asks every ten seconds, then gets the CPU rate of these ten seconds. When nobody asks
// any more it ends, and everything is forgotten.
//
// Decision: meanwhile the files of each cgroup stay open, as far as the process may have them: the kernel
// takes several times as long to open and close them as to read them. An open file does not hold its
// cgroup, and costs the kernel a page.
import { Slices } from "../base/time_slices.ts";
import type { CgroupPaths } from "../node/cgroup.ts";
import { KernelFiles } from "../sys/file.ts";
import { type CgroupUsage, readUsage } from "../node/cgroup_stats.ts";
import { openFilesMax } from "./process_stats.ts";

/** Two readings of one cgroup are at least so far apart; also a rate's shortest time. */
const freshMs = 1_000;
const everyMs = 10_000;
/** Readings go on for so long after the last question. */
const idleMs = 60_000;
/** Some hundred cgroups' files; and never more than this share of what the process may have open. */
const keptFilesMax = 4096;
const keptShare = 4;

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
  readonly #files = new KernelFiles(filesMax());
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
    this.#timer ??= setInterval(() => {
      // Whoever asks next meets the same, and is told.
      this.#tick().catch(() => {});
    }, everyMs).unref();
    return this.#read(cgroups);
  }

  /** The cgroup has ended, and with it what is kept of it. */
  forget(id: string): undefined {
    this.#entries.delete(id);
    this.#files.close(id);
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
    const usage = readUsage(paths, { processes, read: (path) => this.#files.read(id, path) });
    if (usage === undefined) return this.forget(id);
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
      const kept = new Set([...this.#entries.keys(), ...this.#files.owners()]);
      for (const id of kept) if (!ids.has(id)) this.forget(id);
      await this.#read(cgroups);
    } finally {
      this.#reading = false;
    }
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
    this.#entries.clear();
    this.#files[Symbol.dispose]();
  }
}

function filesMax(): number {
  return Math.min(keptFilesMax, Number(openFilesMax(process.pid) ?? Infinity) / keptShare);
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
