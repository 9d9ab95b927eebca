// Interrupts pulls: kills the daemon with -9 at random moments, or fills the disk. The next start must be
// clean, the next pull must work, and no space may be lost. `bun test/pulls.ts [--kills 200] [--full 50]
// [--seed 1] [--again]` prints each round's faults. Progress is recorded in test/.cache/pulls.json; an
// interrupted run is resumed if executable and seed are the same.
import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import * as fs from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { codeOf, messageOf } from "../src/base/errors.ts";
import { executable, Daemon } from "./harness.ts";
import { FakeRegistry } from "./registry/fake_registry.ts";
import { makeImage, makeLayer, type TestImage } from "./image_maker.ts";
import { random } from "./random.ts";
import { resumed } from "./run_record.ts";

export type Cut = "kill" | "full";
export type Round = { number: number; cut: Cut; seed: number };
export type Outcome = Round & {
  /** The call's error, or its success. */
  told: string;
  problems: string[];
  ms: number;
};

const graphBytes = 96 << 20;
const graphFiles = 20_000;
/** Exceeds the duration of any pull here on a busy machine. */
const timeoutMs = 60_000;

export class CutPulls implements AsyncDisposable {
  readonly daemon: Daemon;
  readonly #registry: FakeRegistry;
  readonly #refs: string[];
  /** Duration of an undisturbed pull. */
  #pullMs = 500;
  /** Usage of the graph folder without an image. */
  #empty = { bytes: 0, files: 0 };

  private constructor(daemon: Daemon, registry: FakeRegistry) {
    this.daemon = daemon;
    this.#registry = registry;
    this.#refs = ["one", "two", "three"].map((name) => `${registry.host}/${name}:1`);
  }

  static async open(): Promise<CutPulls> {
    const registry = await FakeRegistry.start();
    for (const [name, image] of Object.entries(images())) registry.put(name, "1", image);
    const daemon = new Daemon({ config: { "insecure-registries": [registry.host] } });
    const pulls = new CutPulls(daemon, registry);
    try {
      fs.mkdirSync(pulls.graph);
      execFileSync("mount", ["-t", "tmpfs", "-o", "mode=711", "tmpfs", pulls.graph]);
      pulls.#plenty();
      daemon.writeConfig();
      fs.mkdirSync(daemon.cniDir);
      await daemon.start();
      await pulls.#measure();
      return pulls;
    } catch (error) {
      await pulls[Symbol.asyncDispose]();
      throw error;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.daemon[Symbol.asyncDispose]();
    await this.#registry[Symbol.asyncDispose]();
  }

  get graph(): string {
    return join(this.daemon.dir, "graph");
  }

  async #measure(): Promise<void> {
    for (const ref of this.#refs) {
      const start = performance.now();
      await this.#pull(ref);
      this.#pullMs = Math.min(2000, performance.now() - start);
    }
    await this.#removeAll();
    this.#empty = usageOf(this.graph);
  }

  async round(round: Round): Promise<Outcome> {
    const outcome: Outcome = { ...round, told: "", problems: [], ms: 0 };
    const start = performance.now();
    try {
      await (round.cut === "kill" ? this.#killed(outcome) : this.#full(outcome));
      await this.#afterwards(outcome);
    } catch (error) {
      outcome.problems.push(messageOf(error));
      this.#plenty();
      await this.daemon.restart("SIGKILL");
      await this.#removeAll().catch(() => {});
    }
    outcome.ms = performance.now() - start;
    return outcome;
  }

  /** Kills the daemon during one to three pulls, sometimes with a concurrent removal. */
  async #killed(outcome: Outcome): Promise<void> {
    const chance = random(outcome.seed);
    const refs = this.#refs.filter(() => chance() < 0.6);
    if (chance() < 0.3) await this.#pull(this.#refs[0]!);
    const calls = refs.map((ref) => this.#pull(ref));
    if (chance() < 0.3) calls.push(this.#remove(this.#refs[0]!));
    const ended = Promise.allSettled(calls);
    await sleep(chance() * this.#pullMs * 1.2);
    await this.daemon.stop("SIGKILL");
    const results = await ended;
    const through = results.filter(({ status }) => status === "fulfilled").length;
    outcome.told = `${through} of ${results.length} calls were through`;
    await this.daemon.start();
  }

  /** Leaves less space than the image needs, or slightly more. */
  async #full(outcome: Outcome): Promise<void> {
    const chance = random(outcome.seed);
    if (chance() < 0.5) await this.#pull(this.#refs[0]!);
    const before = usageOf(this.graph);
    const what = chance() < 0.7 ? "bytes" : "files";
    const share = 0.5 + chance() * 0.6;
    const needs = { bytes: 14 << 20, files: 700 }[what];
    this.#limit(what, before[what] + Math.round(share * needs));
    const ref = this.#refs[chance() < 0.5 ? 1 : 2]!;
    const error = await this.#pull(ref).then(
      () => undefined,
      (cause: unknown) => cause,
    );
    this.#plenty();
    outcome.told = error === undefined ? "it had room" : `${codeOf(error)} ${messageOf(error)}`;
    if (error === undefined) return;
    if (codeOf(error) !== "RESOURCE_EXHAUSTED" || !/no space left/.test(messageOf(error))) {
      outcome.problems.push(`a full disk was reported as: ${outcome.told}`);
    }
    const after = usageOf(this.graph);
    outcome.problems.push(...growth(before, after).map((more) => `after the full disk: ${more}`));
  }

  /** Checks that the next start is clean, the next pulls work, and all space is freed. */
  async #afterwards(outcome: Outcome): Promise<void> {
    const { problems } = outcome;
    problems.push(...(await this.faults()));
    await this.pullAll();
    problems.push(...(await this.faults()).map((fault) => `after the next pulls: ${fault}`));
    await this.#removeAll();
    problems.push(...growth(this.#empty, usageOf(this.graph)).map((more) => `at the end: ${more}`));
  }

  async pullAll(): Promise<void> {
    for (const ref of this.#refs) await this.#pull(ref);
  }

  /** Finds faults in the images and the graph folder of an idle daemon. */
  async faults(): Promise<string[]> {
    // A daemon that has just started may be replacing a layer's record.
    await giveTime(() => [...foldersFaults(this.graph), ...this.#helpers()].length === 0);
    const faults = [...foldersFaults(this.graph), ...this.#helpers()];
    for await (const layer of this.daemon.client.VerifyImages({}, { timeoutMs })) {
      if (layer.state === "intact") continue;
      faults.push(`layer ${layer.chain_id} is ${layer.state}: ${layer.differences?.join("; ")}`);
    }
    return faults;
  }

  /** Finds unpack helpers whose daemon has ended. */
  #helpers(): string[] {
    const pids = fs.readdirSync("/proc").filter((name) => /^\d+$/.test(name));
    const left = pids.filter((pid) => isHelper(pid) && isOrphan(pid));
    return left.map((pid) => `an unpacking helper is left: ${pid}`);
  }

  async #pull(image: string): Promise<unknown> {
    return await this.daemon.client.PullImage({ image: { image } }, { timeoutMs });
  }

  async #remove(image: string): Promise<unknown> {
    return await this.daemon.client.RemoveImage({ image: { image } }, { timeoutMs });
  }

  async #removeAll(): Promise<void> {
    for (const ref of this.#refs) await this.#remove(ref);
    await giveTime(() => growth(this.#empty, usageOf(this.graph)).length === 0);
  }

  #limit(what: "bytes" | "files", count: number): void {
    this.#remount(what === "bytes" ? `size=${count}` : `nr_inodes=${count}`);
  }

  #plenty(): void {
    this.#remount(`size=${graphBytes},nr_inodes=${graphFiles}`);
  }

  #remount(options: string): void {
    execFileSync("mount", ["-o", `remount,${options}`, this.graph]);
  }
}

/** Time for helpers of a killed daemon to notice the end of their input. */
async function giveTime(isSo: () => boolean): Promise<void> {
  for (let tries = 0; tries < 100 && !isSo(); tries++) await sleep(20);
}

function isHelper(pid: string): boolean {
  const words = wordsOf(pid);
  return words[0] === executable && words[1] === "unpack";
}

function isOrphan(pid: string): boolean {
  try {
    const status = fs.readFileSync(`/proc/${pid}/status`, "utf8");
    return wordsOf(/^PPid:\s+(\d+)/m.exec(status)![1]!)[0] !== executable;
  } catch {
    return false; // it is gone
  }
}

function wordsOf(pid: string): string[] {
  try {
    return fs.readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
  } catch {
    return [];
  }
}

type Usage = { bytes: number; files: number };

export function usageOf(folder: string): Usage {
  const { blocks, bfree, bsize, files, ffree } = fs.statfsSync(folder);
  return { bytes: (blocks - bfree) * bsize, files: files - ffree };
}

export function growth(before: Usage, after: Usage): string[] {
  return (["bytes", "files"] as const)
    .filter((what) => after[what] > before[what])
    .map((what) => `${after[what] - before[what]} ${what} more`);
}

/** Finds files in a graph folder that no image needs, and files that an image lacks. */
export function foldersFaults(graph: string): string[] {
  const layers = join(graph, "layers");
  const records = fs.readdirSync(join(graph, "images")).filter((name) => name.endsWith(".json"));
  const needed = new Set(
    records.flatMap((name) => {
      const path = join(graph, "images", name);
      const record = JSON.parse(fs.readFileSync(path, "utf8")) as { layers: string[] };
      return record.layers.map((chainId) => chainId.slice(7, 19));
    }),
  );
  const found = (names: string[], what: string, wanted = needed) => [
    ...names.filter((name) => !wanted.has(name)).map((name) => `${what} ${name} is needless`),
    ...[...wanted].filter((name) => !names.includes(name)).map((name) => `${what} ${name} is lost`),
  ];
  const files = fs.readdirSync(layers).filter((name) => !["l", "scratch"].includes(name));
  const trees = fs.readdirSync(join(layers, "l")).filter((name) => name !== "empty");
  const besides = [...needed].flatMap((short) => [`${short}.json`, `${short}.list`]);
  const may = new Set([...needed].map((short) => `${short}.recipe`));
  return [
    ...found(trees, "the tree"),
    ...found(
      files.filter((name) => !may.has(name)),
      "the file",
      new Set(besides),
    ),
    ...fs.readdirSync(join(layers, "scratch")).map((name) => `scratch/${name} is left`),
    ...fs
      .readdirSync(join(graph, "images"))
      .filter((name) => !records.includes(name.replace(/config$/, "json")))
      .map((name) => `images/${name} is left`),
  ];
}

/** Makes images that share lower and upper layers, with all kinds of entries. */
function images(): Record<string, TestImage> {
  const files = (name: string, count: number, bytes: number) =>
    Array.from({ length: count }, (_, i) => ({
      name: `${name}/${i % 7}/f${i}`,
      data: randomBytes(bytes),
      mode: 0o4755,
      uid: i,
    }));
  const base = makeLayer([
    { name: "base/", type: "5", mode: 0o1777 },
    ...files("base", 200, 2000),
    { name: "hard", type: "1", link: "base/0/f0" },
    { name: "sym", type: "2", link: "/base" },
    { name: "dev/null", type: "3", major: 1, minor: 3 },
  ]);
  const large = makeLayer(files("large", 3, 3 << 20));
  const top = makeLayer([
    { name: ".wh.hard" },
    { name: "base/.wh..wh..opq" },
    { name: "top", data: "x", pax: { "SCHILY.xattr.user.a": "b" } },
  ]);
  const small = makeLayer(files("small", 300, 100));
  return {
    one: makeImage([base, top]),
    two: makeImage([base, large, top]),
    three: makeImage([small, base, large, small]),
  };
}

/** Gives every round its own seed, so that it can be repeated alone. */
export function planOf(kills: number, full: number, seed: number): Round[] {
  const chance = random(seed);
  return Array.from({ length: kills + full }, (_, number) => ({
    number,
    cut: number < kills ? "kill" : "full",
    seed: Math.floor(chance() * 2 ** 31),
  }));
}

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      kills: { type: "string", default: "200" },
      full: { type: "string", default: "50" },
      seed: { type: "string", default: "1" },
      again: { type: "boolean", default: false },
    },
  });
  const file = join(import.meta.dirname, ".cache/pulls.json");
  const seed = Number(values.seed);
  const record = resumed(file, { seed, done: [] as Outcome[] }, values);
  const plan = planOf(Number(values.kills), Number(values.full), seed);
  await using pulls = await CutPulls.open();
  let failed = 0;
  for (const round of plan) {
    const same = (one: Round) => one.cut === round.cut && one.seed === round.seed;
    let outcome = record.done.find((one) => same(one) && one.problems.length === 0);
    if (outcome === undefined) {
      outcome = await pulls.round(round);
      record.done = [...record.done.filter((one) => !same(one)), outcome];
      fs.writeFileSync(file, JSON.stringify(record, null, 2));
    }
    if (outcome.problems.length > 0) failed++;
    console.log(lineOf(outcome));
  }
  console.log(`${plan.length} rounds, ${failed} failed (seed ${seed})`);
  return failed > 0 ? 1 : 0;
}

function lineOf({ number, cut, told, problems, ms }: Outcome): string {
  const words = [problems.length === 0 ? "ok  " : "FAIL", String(number).padStart(4), cut];
  const line = `${words.join(" ")} ${(ms / 1000).toFixed(1)} s  ${told.slice(0, 120)}`;
  return [line, ...problems.map((problem) => `      ${problem}`)].join("\n");
}

if (import.meta.main) process.exitCode = await main();
