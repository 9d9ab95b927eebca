// How much each container has written into its own layer, counted by du(1) in the background.
//
// Decision: a child counts, since a container may have made millions of files: their names would fill
// the daemon's memory, and reading them would hold its calls up. What somebody asked for is counted in
// one go; then it rests twenty times as long as that took. It ends when nobody asks any more.
import { existsSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { messageOf } from "../base/errors.ts";
import { nowNs } from "../base/clock.ts";
import { type Log, logFailure } from "../base/log.ts";
import { failureOutput, run } from "../sys/run.ts";

/** What lies in a folder, in blocks of the disk and in inodes, the folder itself included. */
export type DiskUsage = { atNs: bigint; bytes: bigint; inodes: bigint };

const restMsMin = 10_000;
const restShare = 20;
/** A folder that nobody asked for in so long is forgotten. */
const idleMs = 60_000;
/** Who asks for a folder that was never counted waits so long for it. */
const firstMs = 1_000;
/** For one child; fewer folders are given to the next one when it was not enough. */
const countMs = 60_000;
const foldersMax = 200;

type Entry = { askedMs: number; triedMs: number; usage?: DiskUsage; first: Promise<void> };
type Count = (folders: string[], signal: AbortSignal) => Promise<Map<string, DiskUsage>>;

export class DiskUsages implements Disposable {
  readonly #log: Log;
  readonly #count: Count;
  readonly #entries = new Map<string, Entry>();
  readonly #firsts = new Map<string, () => void>();
  readonly #closing = new AbortController();
  #wake = () => {};
  #running = false;
  /** Why counting fails is told once. */
  #told = false;
  #foldersMax = foldersMax;

  constructor(log: Log, count: Count = countFolders) {
    this.#log = log;
    this.#count = count;
  }

  /** The last figures of each folder; one that was never counted is waited for, but not for long. */
  async of(folders: string[]): Promise<Map<string, DiskUsage>> {
    const waiting = folders.map((folder) => this.#ask(folder));
    if (!this.#running && this.#entries.size > 0) {
      this.#run()
        .catch(
          logFailure(this.#log, "counting written layers ended; the next question begins anew"),
        )
        .finally(() => (this.#running = false));
    }
    if (this.#firsts.size > 0) {
      this.#wake();
      await Promise.race([Promise.all(waiting), sleep(firstMs, undefined, { ref: false })]);
    }
    const found = new Map<string, DiskUsage>();
    for (const folder of folders) {
      const usage = this.#entries.get(folder)?.usage;
      if (usage !== undefined) found.set(folder, usage);
    }
    return found;
  }

  #ask(folder: string): Promise<void> {
    const askedMs = performance.now();
    const known = this.#entries.get(folder);
    if (known !== undefined) {
      known.askedMs = askedMs;
      return known.first;
    }
    const { promise: first, resolve } = Promise.withResolvers<void>();
    this.#entries.set(folder, { askedMs, triedMs: 0, first });
    this.#firsts.set(folder, resolve);
    return first;
  }

  async #run(): Promise<void> {
    this.#running = true;
    let nextMs = performance.now() + restMsMin; // when all are counted again
    while (this.#forgetIdle() > 0 && !this.#closing.signal.aborted) {
      const beginMs = performance.now();
      if (this.#firsts.size > 0) {
        await this.#countSome([...this.#firsts.keys()]);
      } else if (beginMs < nextMs) {
        await this.#rest(nextMs - beginMs);
      } else {
        await this.#countSome([...this.#entries.keys()]);
        const tookMs = performance.now() - beginMs;
        nextMs = performance.now() + Math.max(restMsMin, restShare * tookMs);
      }
    }
  }

  /** As many as one child gets, those that were not tried for the longest time. */
  async #countSome(all: string[]): Promise<void> {
    const triedMs = (folder: string) => this.#entries.get(folder)?.triedMs ?? 0;
    const folders = all.sort((a, b) => triedMs(a) - triedMs(b)).slice(0, this.#foldersMax);
    const signal = AbortSignal.any([this.#closing.signal, AbortSignal.timeout(countMs)]);
    try {
      const usages = await this.#count(folders, signal);
      for (const [folder, usage] of usages) {
        const entry = this.#entries.get(folder);
        if (entry !== undefined) entry.usage = usage;
      }
      this.#foldersMax = Math.min(foldersMax, this.#foldersMax * 2);
      this.#told = false;
    } catch (error) {
      this.#foldersMax = Math.max(1, Math.floor(folders.length / 2));
      if (!this.#closing.signal.aborted) this.#tell(folders.length, error);
    }
    for (const folder of folders) {
      const entry = this.#entries.get(folder);
      if (entry !== undefined) entry.triedMs = performance.now();
      this.#firsts.get(folder)?.();
      this.#firsts.delete(folder);
    }
  }

  #tell(folders: number, error: unknown): void {
    const fields = { folders, error: messageOf(error) };
    if (!this.#told) this.#log.warn("writable layers are not counted (by GNU du)", fields);
    this.#told = true;
  }

  /** Until the time is over, or somebody asks for folders that were never counted. */
  async #rest(ms: number): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#wake = resolve;
    const timer = setTimeout(resolve, ms).unref();
    await promise;
    clearTimeout(timer);
  }

  #forgetIdle(): number {
    const oldest = performance.now() - idleMs;
    for (const [folder, { askedMs }] of this.#entries) {
      if (askedMs >= oldest) continue;
      this.#entries.delete(folder);
      this.#firsts.get(folder)?.();
      this.#firsts.delete(folder);
    }
    return this.#entries.size;
  }

  [Symbol.dispose](): void {
    this.#closing.abort();
    this.#wake();
  }
}

/** By GNU du: blocks, then inodes; the second time the kernel has it all in memory. */
async function countFolders(asked: string[], signal: AbortSignal): Promise<Map<string, DiskUsage>> {
  const folders = asked.filter((folder) => existsSync(folder));
  if (folders.length === 0) return new Map();
  const du = async (unit: string) => {
    const argv = ["nice", "-n", "19", "du", "-s", "-x", unit, "--", ...folders];
    // It keeps in mind each file of several names, of which a container may make millions.
    const { stdout, stderr } = await run(argv, { signal, isExpendable: true });
    // Files that go meanwhile make it fail, and it counts on.
    if (stdout === "" && stderr !== "") throw new Error(failureOutput({ stderr }));
    return parseDu(stdout);
  };
  const bytes = await du("--block-size=1");
  const inodes = await du("--inodes");
  const atNs = nowNs();
  const found = new Map<string, DiskUsage>();
  for (const [folder, count] of bytes) {
    found.set(folder, { atNs, bytes: count, inodes: inodes.get(folder) ?? 0n });
  }
  return found;
}

/** Lines of a number, a tab and a folder. */
function parseDu(text: string): Map<string, bigint> {
  const lines = text.matchAll(/^(\d+)\t(.+)$/gm);
  return new Map([...lines].map(([, count, folder]) => [folder!, BigInt(count!)]));
}
