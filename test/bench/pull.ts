// Pulls from a registry on this machine: against skopeo copy to a folder and tar -x of its layers one
// after the other; ten equal pulls at once; how late the daemon's loop is meanwhile, by its own metrics, and
// what it takes. `bun test/bench/pull.ts` measures this alone. Needs skopeo, tar and docker-registry.
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
  /**
   * ms: how late the daemon's loop was at most in a round, rounded up to a bucket of its histogram: while an
   * image was pulled, and by hand.
   */
  lag: Figure;
  /** ms: the longest that a client waited for an answer; both had to be given a core. */
  wait: Figure;
  /** What the daemon took more than before, at most. */
  peakMiB: number;
};

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
  const result: Pulls = {
    large: { ours: [], by_hand: [] },
    small: { ours: [], by_hand: [] },
    equal: { ours: [], by_hand: [] },
    lag: { ours: [], by_hand: [] },
    wait: { ours: [], by_hand: [] },
    peakMiB: 0,
  };
  for (let round = 0; round <= roundCount; round++) {
    for (const name of ["large", "small"] as const) {
      const ref = `${registry.host}/${name}:1`;
      const ours = await measured({ daemon, port }, ref, 1);
      const byHand = await skopeoAndTar({ daemon, port }, ref);
      if (round === 0) continue; // nothing is warm yet
      result[name].ours.push(ours.ms);
      result[name].by_hand.push(byHand.ms);
      for (const figure of ["lag", "wait"] as const) {
        result[figure].ours.push(ours[figure]);
        result[figure].by_hand.push(byHand[figure]);
      }
      result.peakMiB = Math.max(result.peakMiB, ours.moreMiB);
    }
    const ref = `${registry.host}/small:1`;
    result.equal.by_hand.push((await measured({ daemon, port }, ref, 1)).ms);
    result.equal.ours.push((await measured({ daemon, port }, ref, equalPulls)).ms);
  }
  return result;
}

type Measured = { daemon: Daemon; port: number };

/** Until all of so many equal pulls are answered. */
async function measured({ daemon, port }: Measured, ref: string, count: number) {
  await settled();
  const before = memoryMiB(daemon.pid, "VmRSS");
  writeFileSync(`/proc/${daemon.pid}/clear_refs`, "5"); // forgets the peak until now
  const probe = await Probe.start({ daemon, port });
  const start = performance.now();
  const request = { image: { image: ref } };
  await Promise.all(Array.from({ length: count }, () => daemon.client.PullImage(request)));
  const ms = performance.now() - start;
  const delays = await probe.end();
  const moreMiB = memoryMiB(daemon.pid, "VmHWM") - before;
  await daemon.client.RemoveImage({ image: { image: ref } });
  return { ms, moreMiB, ...delays };
}

/** What was written is on the disk, so that nobody pays for somebody else's. */
async function settled(): Promise<void> {
  spawnSync("sync");
  await sleep(200);
}

function memoryMiB(pid: number, key: string): number {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  return Number(new RegExp(`${key}:\\s+(\\d+)`).exec(status)![1]) / 1024;
}

/** Asks the daemon for its version again and again, so that somebody always waits for its loop. */
class Probe {
  readonly #measured: Measured;
  readonly #before: Lags;
  readonly #running: Promise<void>;
  #longestMs = 0;
  #done = false;

  private constructor(measured: Measured, before: Lags) {
    this.#measured = measured;
    this.#before = before;
    this.#running = this.#run();
  }

  static async start(measured: Measured): Promise<Probe> {
    return new Probe(measured, await lagsOf(measured.port));
  }

  async #run(): Promise<void> {
    while (!this.#done) {
      const start = performance.now();
      await this.#measured.daemon.client.Version({});
      this.#longestMs = Math.max(this.#longestMs, performance.now() - start);
      await sleep(1);
    }
  }

  /** ms. */
  async end(): Promise<{ lag: number; wait: number }> {
    this.#done = true;
    await this.#running;
    const after = await lagsOf(this.#measured.port);
    const more = after.map(({ atMostMs, count }, index) => ({
      atMostMs,
      count: count - (this.#before[index]?.count ?? 0),
    }));
    const all = more.at(-1)!.count;
    return { lag: more.find(({ count }) => count === all)!.atMostMs, wait: this.#longestMs };
  }
}

/** How often the loop was at most so late since the daemon began; the last one tells of all. */
type Lags = { atMostMs: number; count: number }[];

async function lagsOf(port: number): Promise<Lags> {
  const text = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
  const buckets = text.matchAll(/^isulad_loop_lag_seconds_bucket\{le="(.+)"\} (\d+)$/gm);
  return [...buckets].map(([, bound, count]) => ({
    atMostMs: bound === "+Inf" ? Infinity : Number(bound) * 1000,
    count: Number(count),
  }));
}

async function skopeoAndTar(measured: Measured, ref: string) {
  const dir = mkdtempSync(join(tmpdir(), "isulad-bench-"));
  await settled();
  const probe = await Probe.start(measured);
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
  const delays = await probe.end();
  rmSync(dir, { recursive: true });
  return { ms, ...delays };
}

if (import.meta.main) {
  const { peakMiB, ...figures } = await pulls(Number(process.argv[2] ?? rounds));
  for (const [name, { ours, by_hand }] of Object.entries(figures)) {
    const ratios = ours.map((value, index) => value / by_hand[index]!).toSorted((a, b) => a - b);
    const shown = (values: number[]) => values.map((ms) => ms.toFixed(0)).join(" ");
    const ratio = ratios.at(ratios.length >> 1)!.toFixed(2);
    console.log(`${name}: ${shown(ours)} against ${shown(by_hand)}: median ratio ${ratio}`);
  }
  console.log(`daemon: ${peakMiB.toFixed(1)} MiB more at most`);
}
