// Runs a day's churn in an hour: pods with three containers come and go, images are pulled and collected, logs rotated:
// `bun test/churn.ts [--pods 5000] [--round 50] [--runtime isulad-ts|containerd] [--again]`. After each round nothing may be
// left; memory and descriptors must not grow, and no call may become slower. First, leaks that it plants must be found.
// Progress is recorded in test/.cache/churn-RUNTIME.json: SIGINT ends a run after its round, and the next one goes on
// with a fresh daemon. Needs root and docker-registry; containerd is built from its Go module.
import { randomBytes } from "node:crypto";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";
import { medians, timed, type Times } from "./call_times.ts";
import { churnPod, type Stage } from "./churn_pod.ts";
import { callLines, faultsOf, growthKib, type Round } from "./churn_verdict.ts";
import { cniBin, Containerd, containerdPrograms } from "./containerd.ts";
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

async function start(runtime: string, registry: Registry): Promise<Daemon> {
  if (runtime === "containerd") {
    const bin = buildKubernetes(cache, containerdPrograms);
    return Containerd.run(bin, registry);
  }
  const config = {
    "insecure-registries": [registry.host],
    "cni-bin-dir": cniBin,
    "log-level": "INFO",
  };
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

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      pods: { type: "string", default: "5000" },
      round: { type: "string", default: "50" },
      runtime: { type: "string", default: "isulad-ts" },
      again: { type: "boolean", default: false },
    },
  });
  const file = join(cache, `churn-${values.runtime}.json`);
  const fresh: Run = { runtime: values.runtime, pieces: [] };
  const record = resumed(file, fresh, { again: values.again });
  const podsDone = () => record.pieces.flat().reduce((sum, { pods }) => sum + pods, 0);
  if (podsDone() >= Number(values.pods)) record.pieces = [];
  if (podsDone() > 0) console.log(`going on after ${podsDone()} pods`);
  const piece: Round[] = [];
  record.pieces.push(piece);
  await using registry = await startRegistry();
  await using daemon = await start(values.runtime, registry);
  const churn = new Churn(daemon, registry);
  await churn.prepare();
  const ending = new AbortController();
  process.on("SIGINT", () => ending.abort());
  while (podsDone() < Number(values.pods) && !ending.signal.aborted) {
    const round = await churn.round(Number(values.round));
    piece.push(round);
    writeFileSync(file, JSON.stringify(record));
    const { leaks, problems } = round;
    console.log(
      `${new Date().toISOString()} ${podsDone()} pods, ${(round.ms / 1000).toFixed(0)} s, ${Math.round(round.pssKib / 1024)} MiB, ` +
        `${round.descriptors} descriptors, ${round.podCpuMs.toFixed(0)} ms CPU a pod, ${leaks.length} leaks`,
    );
    for (const fault of [...leaks, ...problems]) console.log(`  ${fault}`);
  }
  for (const rounds of record.pieces) report(rounds);
  const faults = record.pieces.flatMap(faultsOf);
  for (const fault of faults) console.log(fault);
  return faults.length === 0 ? 0 : 1;
}

if (import.meta.main) process.exitCode = await main();
