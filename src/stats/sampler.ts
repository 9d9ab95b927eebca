// Samples cgroups for CRI's stats and metrics calls and for the CLI.
//
// Decision: a call reads a cgroup only if the last sample is older than freshMs, so any number of clients
// costs one reading per second. A timer continues sampling for a while after a call, so that a kubelet,
// which calls every ten seconds, gets the CPU rate of those ten seconds. Without calls the timer stops and
// all samples are dropped.
//
// Decision: meanwhile the files of each cgroup stay open, within the process's limit, because opening and
// closing takes several times as long as reading. An open file does not pin its cgroup and costs the kernel
// a page.
import { Slices } from "../base/time_slices.ts";
import type { CgroupPaths } from "../node/cgroup.ts";
import { KernelFiles } from "../sys/file.ts";
import { softLimit } from "../sys/process.ts";
import { type CgroupUsage, readUsage } from "./cgroup_usage.ts";

/** Minimum time between two readings of a cgroup, and so the shortest period of a rate. */
const freshMs = 1_000;
/** Sampling continues for this long after the last call, and for some periods. */
const idleMsMin = 60_000;
const idlePeriods = 3;
/** The files of some hundred cgroups, and at most a quarter of the process's limit. */
const openFilesCap = 4096;
const limitShare = 4;

/**
 * processes: also count processes, which costs one file for each cgroup below. usage: asks the container's shim, where
 * this node's cgroup does not show the usage; never throws.
 */
export type Cgroup = {
  id: string;
  paths: CgroupPaths;
  processes?: boolean;
  usage?: () => Promise<CgroupUsage | undefined>;
};

/** One reading of a cgroup; nanoCores: CPU nanoseconds per second since the previous one. */
export type Sample = CgroupUsage & { nanoCores?: bigint };

type Entry = { sample: Sample; monotonicMs: number };

export class Sampler implements Disposable {
  readonly #list: () => Cgroup[];
  readonly #intervalMs: number;
  readonly #entries = new Map<string, Entry>();
  /** Calls of `usage` that are not answered yet, by id. */
  readonly #asked = new Map<string, Promise<Sample | undefined>>();
  readonly #files = new KernelFiles(filesMax());
  #timer: ReturnType<typeof setInterval> | undefined;
  #requestedMs = 0;
  #sampling = false;

  /** list: returns all current cgroups; intervalMs: of sampling between calls. */
  constructor(list: () => Cgroup[], intervalMs: number) {
    this.#list = list;
    this.#intervalMs = intervalMs;
  }

  /** Returns the samples of those cgroups that exist, by id. */
  async sample(cgroups: Cgroup[]): Promise<Map<string, Sample>> {
    this.#requestedMs = performance.now();
    this.#timer ??= setInterval(() => {
      this.#tick().catch(() => {}); // the next call gets the same error
    }, this.#intervalMs).unref();
    return this.#read(cgroups);
  }

  /** Drops the last sample and open files of a cgroup. */
  forget(id: string): undefined {
    this.#entries.delete(id);
    this.#files.close(id);
  }

  async #read(cgroups: Cgroup[]): Promise<Map<string, Sample>> {
    const samples = new Map<string, Sample>();
    const slices = new Slices();
    const asked: Promise<unknown>[] = [];
    for (const cgroup of cgroups) {
      const { id, usage } = cgroup;
      const keep = (sample: Sample | undefined) => sample && samples.set(id, sample);
      if (usage === undefined) keep(this.#fresh(cgroup));
      else asked.push(this.#ask(id, usage).then(keep));
      await slices.pause();
    }
    if (asked.length > 0) await Promise.all(asked);
    return samples;
  }

  #fresh({ id, paths, processes }: Cgroup): Sample | undefined {
    const known = this.#recent(id);
    if (known !== undefined) return known;
    return this.#sampled(
      id,
      readUsage(paths, { processes, read: (path) => this.#files.read(id, path) }),
    );
  }

  /** Calls `usage` once for all concurrent callers, and reuses the answer while it is fresh. */
  async #ask(id: string, ask: NonNullable<Cgroup["usage"]>): Promise<Sample | undefined> {
    const known = this.#recent(id) ?? this.#asked.get(id);
    if (known !== undefined) return known;
    const answer = ask().then((usage) => this.#sampled(id, usage));
    this.#asked.set(id, answer);
    return await answer.finally(() => this.#asked.delete(id));
  }

  #recent(id: string): Sample | undefined {
    const before = this.#entries.get(id);
    return before && performance.now() - before.monotonicMs < freshMs ? before.sample : undefined;
  }

  #sampled(id: string, usage: CgroupUsage | undefined): Sample | undefined {
    const before = this.#entries.get(id);
    const monotonicMs = performance.now();
    if (usage === undefined) return this.forget(id);
    const last = before && { cpuNs: before.sample.cpuNs, monotonicMs: before.monotonicMs };
    const sample = { ...usage, nanoCores: cpuRate(last, { cpuNs: usage.cpuNs, monotonicMs }) };
    this.#entries.set(id, { sample, monotonicMs });
    return sample;
  }

  async #tick(): Promise<void> {
    const idleMs = Math.max(idleMsMin, idlePeriods * this.#intervalMs);
    if (performance.now() - this.#requestedMs > idleMs) return this[Symbol.dispose]();
    if (this.#sampling) return;
    this.#sampling = true;
    try {
      const cgroups = this.#list();
      const ids = new Set(cgroups.map(({ id }) => id));
      const known = new Set([...this.#entries.keys(), ...this.#files.owners()]);
      for (const id of known) if (!ids.has(id)) this.forget(id);
      await this.#read(cgroups);
    } finally {
      this.#sampling = false;
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
  return Math.min(openFilesCap, (softLimit(process.pid, "open files") ?? Infinity) / limitShare);
}

type CpuReading = { cpuNs: bigint | undefined; monotonicMs: number };

/** Returns CPU nanoseconds per second; undefined without a comparable earlier reading. */
export function cpuRate(before: CpuReading | undefined, now: CpuReading): bigint | undefined {
  const [from, to] = [before?.cpuNs, now.cpuNs];
  // A lower counter means that another cgroup has the same name.
  if (before === undefined || from === undefined || to === undefined || to < from) return undefined;
  const passedUs = BigInt(Math.round((now.monotonicMs - before.monotonicMs) * 1000));
  return passedUs <= 0n ? undefined : ((to - from) * 1_000_000n) / passedUs;
}
