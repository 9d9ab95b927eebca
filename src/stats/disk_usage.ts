// Measures what containers have written, in their writable layers and volumes, in the background with du(1).
//
// Decision: a child process measures, because a container may have millions of files, whose names would
// fill the daemon's memory and delay its calls. One run measures up to 200 of the requested folders, and a pause of at
// least twenty times its duration follows. Measuring stops when no caller requests it any more.
import { existsSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { messageOf } from "../base/errors.ts";
import { nowNs } from "../base/clock.ts";
import { type Log, logFailure } from "../base/log.ts";
import { failureOutput, run } from "../sys/run.ts";

/** Allocated bytes and inodes of a folder, or of its parts, including the folders themselves. */
export type DiskUsage = { atNs: bigint; bytes: bigint; inodes: bigint };

const pauseFactor = 20;
/** A folder that was not requested for this long, and for some pauses, is forgotten. */
const idleMsMin = 60_000;
const idlePauses = 3;
/** A caller waits this long for the first measurement of a folder. */
const firstMs = 1_000;
/** Limit for one child; after a failure the next child gets fewer folders. */
const measureMs = 60_000;
const foldersMax = 200;

type Entry = { requestedMs: number; triedMs: number; usage?: DiskUsage; first: Promise<void> };
type Measure = (folders: string[], signal: AbortSignal) => Promise<Map<string, DiskUsage>>;

export class DiskUsages implements Disposable {
  readonly #log: Log;
  readonly #pauseMs: number;
  readonly #measure: Measure;
  readonly #entries = new Map<string, Entry>();
  readonly #firsts = new Map<string, () => void>();
  readonly #closing = new AbortController();
  #wake = () => {};
  #running = false;
  #failureLogged = false;
  #foldersMax = foldersMax;

  /** pauseMs: between two measurements, unless the last one took long. */
  constructor(log: Log, pauseMs: number, measure: Measure = measurer()) {
    this.#log = log;
    this.#pauseMs = pauseMs;
    this.#measure = measure;
  }

  /** Returns the last figures of each folder; waits briefly for folders that were never measured. */
  async of(folders: string[]): Promise<Map<string, DiskUsage>> {
    const waiting = folders.map((folder) => this.#request(folder));
    if (!this.#running && this.#entries.size > 0) {
      this.#run()
        .catch(logFailure(this.#log, "measuring writable layers failed; the next call restarts it"))
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

  #request(folder: string): Promise<void> {
    const requestedMs = performance.now();
    const known = this.#entries.get(folder);
    if (known !== undefined) {
      known.requestedMs = requestedMs;
      return known.first;
    }
    const { promise: first, resolve } = Promise.withResolvers<void>();
    this.#entries.set(folder, { requestedMs, triedMs: 0, first });
    this.#firsts.set(folder, resolve);
    return first;
  }

  async #run(): Promise<void> {
    this.#running = true;
    let nextMs = performance.now() + this.#pauseMs; // of the next run over all folders
    while (this.#forgetIdle() > 0 && !this.#closing.signal.aborted) {
      const beginMs = performance.now();
      if (this.#firsts.size > 0) {
        await this.#measureSome([...this.#firsts.keys()]);
      } else if (beginMs < nextMs) {
        await this.#pause(nextMs - beginMs);
      } else {
        await this.#measureSome([...this.#entries.keys()]);
        const tookMs = performance.now() - beginMs;
        nextMs = performance.now() + Math.max(this.#pauseMs, pauseFactor * tookMs);
      }
    }
  }

  /** Measures as many folders as one child gets, least recently tried first. */
  async #measureSome(all: string[]): Promise<void> {
    const triedMs = (folder: string) => this.#entries.get(folder)?.triedMs ?? 0;
    const folders = all.sort((a, b) => triedMs(a) - triedMs(b)).slice(0, this.#foldersMax);
    const signal = AbortSignal.any([this.#closing.signal, AbortSignal.timeout(measureMs)]);
    try {
      const usages = await this.#measure(folders, signal);
      for (const [folder, usage] of usages) {
        const entry = this.#entries.get(folder);
        if (entry !== undefined) entry.usage = usage;
      }
      this.#foldersMax = Math.min(foldersMax, this.#foldersMax * 2);
      this.#failureLogged = false;
    } catch (error) {
      this.#foldersMax = Math.max(1, Math.floor(folders.length / 2));
      if (!this.#closing.signal.aborted) this.#logFailure(folders.length, error);
    }
    for (const folder of folders) {
      const entry = this.#entries.get(folder);
      if (entry !== undefined) entry.triedMs = performance.now();
      this.#firsts.get(folder)?.();
      this.#firsts.delete(folder);
    }
  }

  /** Logs the first of consecutive failures. */
  #logFailure(folders: number, error: unknown): void {
    const message = "measuring writable layers with du failed; retrying with fewer at a time";
    if (!this.#failureLogged) this.#log.warn(message, { folders, error: messageOf(error) });
    this.#failureLogged = true;
  }

  /** Waits for the given time or a request for a folder that was never measured. */
  async #pause(ms: number): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#wake = resolve;
    const timer = setTimeout(resolve, ms).unref();
    await promise;
    clearTimeout(timer);
  }

  #forgetIdle(): number {
    const oldest = performance.now() - Math.max(idleMsMin, idlePauses * this.#pauseMs);
    for (const [folder, { requestedMs }] of this.#entries) {
      if (requestedMs >= oldest) continue;
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

/** partsOf: the folders that count for a requested one, which is itself not measured if it is not among them. */
export function measurer(partsOf = (folder: string): string[] => [folder]): Measure {
  return async (requested, signal) => {
    const parts = new Map(requested.map((folder) => [folder, partsOf(folder)]));
    const usages = await measureFolders([...parts.values()].flat(), signal);
    const found = new Map<string, DiskUsage>();
    for (const [folder, names] of parts) {
      const [first, ...others] = names.flatMap((name) => usages.get(name) ?? []);
      if (first !== undefined) found.set(folder, others.reduce(sum, first));
    }
    return found;
  };
}

function sum(a: DiskUsage, b: DiskUsage): DiskUsage {
  return { atNs: a.atNs, bytes: a.bytes + b.bytes, inodes: a.inodes + b.inodes };
}

/** Runs GNU du twice, for bytes and inodes; the second run finds everything in the kernel's caches. */
async function measureFolders(
  requested: string[],
  signal: AbortSignal,
): Promise<Map<string, DiskUsage>> {
  const folders = requested.filter((folder) => existsSync(folder));
  if (folders.length === 0) return new Map();
  const du = async (unit: string) => {
    const argv = ["nice", "-n", "19", "du", "-s", "-x", unit, "--", ...folders];
    // Expendable: du remembers every hard-linked file, and a container may create millions.
    const { stdout, stderr } = await run(argv, { signal, isExpendable: true });
    // Files removed meanwhile make du exit non-zero, although its figures are usable.
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

/** Parses lines of a number, a tab and a folder. */
function parseDu(text: string): Map<string, bigint> {
  const lines = text.matchAll(/^(\d+)\t(.+)$/gm);
  return new Map([...lines].map(([, count, folder]) => [folder!, BigInt(count!)]));
}
