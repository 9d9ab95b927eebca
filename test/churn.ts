// Runs a day's churn in an hour: pods with three containers come and go, images are pulled and collected, logs rotated:
// `bun test/churn.ts [--pods 5000] [--round 50] [--runtimes isulad-ts,containerd] [--again]`. After each round nothing may be
// left; memory and descriptors must not grow, and no call may become slower. First, leaks that it plants must be found.
// Several runtimes take turns, a round each, so that other work on the machine disturbs them alike.
// Progress is recorded in test/.cache/churn-RUNTIME.json: SIGINT ends a run after its round, and the next one goes on
// with a fresh daemon. Needs root and docker-registry; containerd is built from its Go module.
import { randomBytes } from "node:crypto";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";
import { medians, timed, type Times } from "./call_times.ts";
import { churnPod, type Stage } from "./churn_pod.ts";
import { callLines, comparison, faultsOf, growthKib, type Round } from "./churn_verdict.ts";
import { cniBin, Containerd, containerdPrograms, sameParts } from "./containerd.ts";
import { cpuMs, yardstick } from "./cpu_time.ts";
import { type Daemon, startDaemon } from "./harness.ts";
import { busyboxImage } from "./image_maker.ts";
import { buildKubernetes } from "./kubelet_node.ts";
import {
  descriptorsIn,
  leaksSince,
  pssKib,
  type Scope,
  type Snapshot,
  takeSnapshot,
} from "./leaks.ts";
import { type Registry, startRegistry } from "./registry.ts";
import { resumed } from "./run_record.ts";

type Run = {
  runtime: string;
  /** The rounds of each daemon: the run and its resumptions. */
  pieces: Round[][];
};

/** bin: as start() takes it. */
type Wish = { pods: number; again: boolean; bin: string | undefined };

const parallel = 5;
const imagesInRound = 4;
const imageBytes = 256 << 10;
/** containerd's garbage collection waits for a second of rest, and works on. */
const goneMs = 30_000;
const cache = join(import.meta.dirname, ".cache");

class Churn {
  readonly #daemon: Daemon;
  readonly #registry: Registry;
  readonly #scope: Scope;
  #before!: Snapshot;
  #serial = 0;

  constructor(daemon: Daemon, registry: Registry) {
    this.#daemon = daemon;
    this.#registry = registry;
    const images = ["layers", "blobs", "images"].map((name) => join(daemon.dir, "graph", name));
    this.#scope = { ...daemon.scope, kept: [...daemon.scope.kept, ...images] };
  }

  /** What is made once and kept is made here. @throws Error when a planted leak is not found. */
  async prepare(): Promise<void> {
    await this.round(parallel);
    this.#before = takeSnapshot(this.#scope);
    const stage = this.#stage();
    const config = this.#daemon.podConfig();
    const [image] = await this.#pull(stage, 1);
    const podId = await this.#daemon.runPod(config);
    const more = { image: { image: image!, user_specified_image: image! } };
    await this.#daemon.run(podId, config, ["sleep", "600"], more);
    const found = await this.#leaks(0);
    const kinds = [
      "process",
      "mount",
      "IP lease",
      "cgroup",
      "file",
      "network link",
      "record",
      "image",
    ];
    const missed = kinds.filter((kind) => !found.some((line) => line.startsWith(`${kind}: `)));
    if (missed.length > 0) throw new Error(`not found although planted: ${missed.join(", ")}`);
    await this.#daemon.removePod(podId);
    await this.#daemon.client.RemoveImage({ image: { image: image! } });
    const left = await this.#leaks();
    if (left.length > 0) throw new Error(`left after the planted leaks: ${left.join(", ")}`);
    console.log(`each of ${kinds.length} planted leaks was found`);
  }

  #stage(): Stage & { times: Times } {
    return { daemon: this.#daemon, times: new Map(), problems: [] };
  }

  async round(pods: number): Promise<Round> {
    const stage = this.#stage();
    const startMs = performance.now();
    const yardstickMs = yardstick();
    const cpu = cpuMs(this.#daemon.scope.pids()); // not that of shims, which come and go
    const images = await this.#pull(stage, imagesInRound);
    let next = 0;
    const worker = async () => {
      for (let index = next++; index < pods; index = next++)
        await churnPod(stage, images[index % images.length]!);
    };
    await Promise.all(Array.from({ length: parallel }, worker));
    for (const image of images)
      await timed(stage.times, "RemoveImage", () =>
        this.#daemon.client.RemoveImage({ image: { image } }),
      );
    const ms = performance.now() - startMs;
    const podCpuMs = (cpuMs(this.#daemon.scope.pids()) - cpu) / pods;
    const leaks = this.#before === undefined ? [] : await this.#leaks();
    return {
      pods,
      ms,
      leaks,
      problems: stage.problems,
      pssKib: this.#pids().reduce((sum, pid) => sum + pssKib(pid), 0),
      descriptors: descriptorsIn(takeSnapshot({ ...this.#scope, kept: [] })),
      podCpuMs,
      calls: medians(stage.times),
      yardstickMs: (yardstickMs + yardstick()) / 2,
    };
  }

  /** Makes and pulls images that share their lowest layer. */
  async #pull(stage: Stage, count: number): Promise<string[]> {
    const images: string[] = [];
    for (let index = 0; index < count; index++) {
      const tag = String(++this.#serial);
      const data = randomBytes(imageBytes);
      await this.#registry.push("churn", tag, busyboxImage({}, [{ name: "data", data }]));
      const image = `${this.#registry.host}/churn:${tag}`;
      await timed(stage.times, "PullImage", () =>
        this.#daemon.client.PullImage({ image: { image } }),
      );
      images.push(image);
    }
    return images;
  }

  #pids(): number[] {
    return [this.#daemon.pid, ...this.#daemon.monitors()];
  }

  async #leaks(withinMs = goneMs): Promise<string[]> {
    const { client } = this.#daemon;
    const things = await leaksSince(this.#before, this.#scope, withinMs);
    const [{ items }, { containers }, { images }] = await Promise.all([
      client.ListPodSandbox({}),
      client.ListContainers({}),
      client.ListImages({}),
    ]);
    const churned = images.filter(({ repo_tags }) => /\/churn:/.test(String(repo_tags)));
    return [
      ...things,
      ...[...items, ...containers].map(({ id }) => `record: ${id}`),
      ...churned.map(({ id }) => `image: ${id}`),
    ];
  }
}

/** bin: the folder of containerd and runc, where containerd is one of the runtimes: both use that runc. */
async function start(runtime: string, registry: Registry, bin?: string): Promise<Daemon> {
  if (runtime === "containerd") return Containerd.run(bin!, registry);
  const alone = {
    "insecure-registries": [registry.host],
    "cni-bin-dir": cniBin,
    "log-level": "INFO",
  };
  const config = bin === undefined ? alone : sameParts(bin, registry);
  return startDaemon({ config, image: false, detached: true });
}

function report(rounds: Round[]): void {
  const sum = (figures: number[]) => figures.reduce((a, b) => a + b, 0);
  const pods = sum(rounds.map((round) => round.pods));
  const minutes = (sum(rounds.map(({ ms }) => ms)) / 60_000).toFixed(1);
  const mib = [rounds[0]!, rounds.at(-1)!].map(({ pssKib }) => Math.round(pssKib / 1024));
  const leaks = sum(rounds.map((round) => round.leaks.length));
  console.log(
    `${pods} pods in ${minutes} min, ${leaks} leaks, memory ${mib.join(" → ")} MiB (${growthKib(rounds)} KiB of growth), ` +
      `${rounds[0]!.descriptors} → ${rounds.at(-1)!.descriptors} descriptors, ` +
      `CPU of a pod ${rounds[0]!.podCpuMs.toFixed(0)} → ${rounds.at(-1)!.podCpuMs.toFixed(0)} ms`,
  );
  for (const line of callLines(rounds)) console.log(line);
}

/** The churn of one runtime, and its record. */
class Contender implements AsyncDisposable {
  readonly runtime: string;
  readonly record: Run;
  readonly #file: string;
  readonly #daemon: Daemon;
  readonly #churn: Churn;
  readonly #piece: Round[] = [];

  private constructor(record: Run, file: string, daemon: Daemon, registry: Registry) {
    this.runtime = record.runtime;
    this.record = record;
    this.#file = file;
    this.#daemon = daemon;
    this.#churn = new Churn(daemon, registry);
    record.pieces.push(this.#piece);
  }

  static async start(runtime: string, registry: Registry, wish: Wish): Promise<Contender> {
    const file = join(cache, `churn-${runtime}.json`);
    const record = resumed<Run>(file, { runtime, pieces: [] }, wish);
    if (podsOf(record) >= wish.pods) record.pieces = [];
    if (podsOf(record) > 0) console.log(`${runtime} goes on after ${podsOf(record)} pods`);
    const contender = new Contender(
      record,
      file,
      await start(runtime, registry, wish.bin),
      registry,
    );
    try {
      await contender.#churn.prepare();
      return contender;
    } catch (error) {
      await contender[Symbol.asyncDispose]();
      throw error;
    }
  }

  get podsDone(): number {
    return podsOf(this.record);
  }

  async round(pods: number): Promise<void> {
    const round = await this.#churn.round(pods);
    this.#piece.push(round);
    writeFileSync(this.#file, JSON.stringify(this.record));
    const { leaks, problems } = round;
    console.log(
      `${new Date().toISOString()} ${this.runtime}: ${this.podsDone} pods, ${(round.ms / 1000).toFixed(0)} s, ` +
        `${Math.round(round.pssKib / 1024)} MiB, ${round.descriptors} descriptors, ` +
        `${round.podCpuMs.toFixed(0)} ms CPU a pod, ${leaks.length} leaks`,
    );
    for (const fault of [...leaks, ...problems]) console.log(`  ${fault}`);
  }

  /** Prints its figures; returns its faults. */
  report(): string[] {
    console.log(this.runtime);
    for (const rounds of this.record.pieces.filter(({ length }) => length > 0)) report(rounds);
    return this.record.pieces.flatMap(faultsOf).map((fault) => `${this.runtime}: ${fault}`);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#daemon[Symbol.asyncDispose]();
  }
}

const podsOf = ({ pieces }: Run) => pieces.flat().reduce((sum, { pods }) => sum + pods, 0);

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      pods: { type: "string", default: "5000" },
      round: { type: "string", default: "50" },
      runtimes: { type: "string", default: "isulad-ts" },
      again: { type: "boolean", default: false },
    },
  });
  const runtimes = values.runtimes.split(",");
  const bin = runtimes.includes("containerd")
    ? buildKubernetes(cache, containerdPrograms)
    : undefined;
  const wish: Wish = { pods: Number(values.pods), again: values.again, bin };
  await using things = new AsyncDisposableStack();
  const registry = things.use(await startRegistry());
  const contenders: Contender[] = [];
  for (const runtime of runtimes)
    contenders.push(things.use(await Contender.start(runtime, registry, wish)));
  const ending = new AbortController();
  process.on("SIGINT", () => ending.abort());
  for (;;) {
    const left = contenders.filter(({ podsDone }) => podsDone < wish.pods);
    if (left.length === 0 || ending.signal.aborted) break;
    for (const contender of left) await contender.round(Number(values.round));
  }
  const faults = contenders.flatMap((contender) => contender.report());
  for (const line of comparison(
    contenders.map(({ runtime, record }) => [runtime, record.pieces.flat()]),
  ))
    console.log(line);
  for (const fault of faults) console.log(fault);
  return faults.length === 0 ? 0 : 1;
}

if (import.meta.main) process.exitCode = await main();
