// Measures pulls from a registry on this machine: against skopeo copy to a folder and tar -x of its layers in
// turn; ten equal pulls at once; the daemon's event-loop lag meanwhile, by its own metrics; and its memory.
// `bun test/bench/pull.ts` measures this alone. Needs skopeo, tar and docker-registry.
import { execFile, spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { type Daemon, startDaemon } from "../harness.ts";
import { makeImage, makeLayer, type TestImage } from "../image_maker.ts";
import { freePort, startRegistry } from "../registry.ts";
import { Stalls } from "./stalls.ts";

const layerCount = 5;
const rounds = 5;
const equalPulls = 10;

export type Figure = { ours: number[]; by_hand: number[] };
export type Pulls = {
  /** ms: 5 layers of one file of 20 MB. */
  large: Figure;
  /** ms: 5 layers of 4,000 files of 1 KiB. */
  small: Figure;
  /** ms: ten equal pulls at once, and one. */
  equal: Figure;
  /** ms: the longest wait of a client for an answer in a round, scheduling included. */
  wait: Figure;
  /** Peak growth of the daemon's memory. */
  peakMiB: number;
  /** Maximum event-loop lag during pulls, rounded up to a bucket of its histogram. */
  lagMs: number;
  /** Longest stall of the machine meanwhile, rounded up likewise. */
  stallMs: number;
};

type Lags = Pick<Pulls, "lagMs" | "stallMs">;
const lagMsMax = 20;

/** Stalls of the machine do not count as lag of the daemon. */
export function isLate({ lagMs, stallMs }: Lags): boolean {
  return lagMs > Math.max(lagMsMax, stallMs);
}

export function lagText({ lagMs, stallMs }: Lags): string {
  return `its loop at most ${lagMs} ms late (bound ${lagMsMax}, or as long as the machine stood still: ${stallMs})`;
}

function largeImage(): TestImage {
  return image((layer) => [{ name: `large${layer}`, data: randomBytes(20_000_000) }]);
}

function smallImage(): TestImage {
  return image((layer) =>
    Array.from({ length: 4000 }, (_, i) => ({
      name: `d${layer}/${i % 40}/f${i}`,
      data: randomBytes(512).toString("hex"),
    })),
  );
}

function image(entries: (layer: number) => Parameters<typeof makeLayer>[0]): TestImage {
  return makeImage(Array.from({ length: layerCount }, (_, layer) => makeLayer(entries(layer))));
}

/** registries: "insecure-registries" of the daemon must have the one that is started here. */
export async function pulls(roundCount = rounds): Promise<Pulls> {
  await using registry = await startRegistry();
  const port = await freePort();
  const insecure = { "insecure-registries": [registry.host] };
  const config = { ...insecure, "log-level": "ERROR", "metrics-port": port };
  await using daemon = await startDaemon({ config, network: false, image: false });
  await registry.push("large", "1", largeImage());
  await registry.push("small", "1", smallImage());
  using stalls = new Stalls();
  let stallMs = 0;
  const measure = async (...what: Parameters<typeof measured>) => {
    const start = performance.now();
    const result = await measured(...what);
    stallMs = Math.max(stallMs, stalls.longestMs(start));
    return result;
  };
  const result: Omit<Pulls, "lagMs" | "stallMs"> = {
    large: { ours: [], by_hand: [] },
    small: { ours: [], by_hand: [] },
    equal: { ours: [], by_hand: [] },
    wait: { ours: [], by_hand: [] },
    peakMiB: 0,
  };
  for (let round = 0; round <= roundCount; round++) {
    for (const name of ["large", "small"] as const) {
      const ref = `${registry.host}/${name}:1`;
      const ours = await measure(daemon, ref, 1);
      const byHand = await skopeoAndTar(daemon, ref);
      if (round === 0) continue; // nothing is warm yet
      result[name].ours.push(ours.ms);
      result[name].by_hand.push(byHand.ms);
      result.wait.ours.push(ours.wait);
      result.wait.by_hand.push(byHand.wait);
      result.peakMiB = Math.max(result.peakMiB, ours.moreMiB);
    }
    const ref = `${registry.host}/small:1`;
    const { ours: ten, by_hand: one } = result.equal;
    const turns = [
      { times: one, count: 1 },
      { times: ten, count: equalPulls },
    ];
    // Alternates the order, so that pending writes of the previous round affect each equally.
    if (round % 2 === 1) turns.reverse();
    for (const { times, count } of turns) times.push((await measure(daemon, ref, count)).ms);
  }
  return { ...result, ...(await longestLags(port, stallMs)) };
}

/** Duration until all of `count` equal pulls are answered. */
async function measured(daemon: Daemon, ref: string, count: number) {
  await settled();
  const before = memoryMiB(daemon.pid, "VmRSS");
  writeFileSync(`/proc/${daemon.pid}/clear_refs`, "5"); // forgets the peak until now
  const probe = new Probe(daemon);
  const start = performance.now();
  const request = { image: { image: ref } };
  await Promise.all(Array.from({ length: count }, () => daemon.client.PullImage(request)));
  const ms = performance.now() - start;
  const wait = await probe.end();
  const moreMiB = memoryMiB(daemon.pid, "VmHWM") - before;
  await daemon.client.RemoveImage({ image: { image: ref } });
  return { ms, moreMiB, wait };
}

/** Syncs pending writes, so that no measurement includes those of another. */
async function settled(): Promise<void> {
  spawnSync("sync");
  await sleep(200);
}

function memoryMiB(pid: number, key: string): number {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  return Number(new RegExp(`${key}:\\s+(\\d+)`).exec(status)![1]) / 1024;
}

/** Calls Version repeatedly. */
class Probe {
  readonly #running: Promise<void>;
  #longestMs = 0;
  #done = false;

  constructor(daemon: Daemon) {
    this.#running = this.#run(daemon);
  }

  async #run(daemon: Daemon): Promise<void> {
    while (!this.#done) {
      const start = performance.now();
      await daemon.client.Version({});
      this.#longestMs = Math.max(this.#longestMs, performance.now() - start);
      await sleep(1);
    }
  }

  /** The slowest answer in ms. */
  async end(): Promise<number> {
    this.#done = true;
    await this.#running;
    return this.#longestMs;
  }
}

/** Of the daemon's life, in ms: only pulls are measured, and nothing by hand is late but the machine. */
async function longestLags(port: number, stallMs: number): Promise<Lags> {
  const text = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
  const all = Number(/^isulad_loop_lag_seconds_count (\d+)$/m.exec(text)?.[1] ?? 0);
  if (all === 0) throw new Error("the daemon has not measured its loop");
  const buckets = text
    .matchAll(/^isulad_loop_lag_seconds_bucket\{le="(.+)"\} (\d+)$/gm)
    .map(([, bound, count]) => ({
      ms: bound === "+Inf" ? Infinity : Number(bound) * 1000,
      count: Number(count),
    }))
    .toArray();
  return {
    lagMs: buckets.find(({ count }) => count === all)!.ms,
    stallMs: buckets.find(({ ms }) => ms >= stallMs)!.ms,
  };
}

async function skopeoAndTar(daemon: Daemon, ref: string) {
  const dir = mkdtempSync(join(tmpdir(), "isulad-bench-"));
  await settled();
  const probe = new Probe(daemon);
  const start = performance.now();
  const run = promisify(execFile);
  const target = `dir:${dir}/blobs`;
  await run("skopeo", ["copy", "-q", "--src-tls-verify=false", `docker://${ref}`, target]);
  const manifest = JSON.parse(readFileSync(join(dir, "blobs/manifest.json"), "utf8")) as {
    layers: { digest: string }[];
  };
  for (const [index, { digest }] of manifest.layers.entries()) {
    const tree = join(dir, String(index));
    mkdirSync(tree);
    await run("tar", ["-xpf", join(dir, "blobs", digest.slice("sha256:".length)), "-C", tree]);
  }
  const ms = performance.now() - start;
  const wait = await probe.end();
  rmSync(dir, { recursive: true });
  return { ms, wait };
}

if (import.meta.main) {
  const { peakMiB, lagMs, stallMs, ...figures } = await pulls(Number(process.argv[2] ?? rounds));
  for (const [name, { ours, by_hand }] of Object.entries(figures)) {
    const ratios = ours.map((value, index) => value / by_hand[index]!).toSorted((a, b) => a - b);
    const shown = (values: number[]) => values.map((ms) => ms.toFixed(0)).join(" ");
    const ratio = ratios.at(ratios.length >> 1)!.toFixed(2);
    console.log(`${name}: ${shown(ours)} against ${shown(by_hand)}: median ratio ${ratio}`);
  }
  console.log(`daemon: ${peakMiB.toFixed(1)} MiB more at most, ${lagText({ lagMs, stallMs })}`);
}
