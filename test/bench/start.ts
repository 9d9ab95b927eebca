// Measures the cost of recorded pods at the daemon's start, and the cost of records for a pod: `bun
// test/bench/start.ts [--pods 100]`. Exits with 1 when a figure exceeds its bound. Needs root, the built
// executable and strace.
import { spawn, spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { connect } from "../../src/cli/client.ts";
import { runtime } from "../../src/proto/messages.js";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { type Daemon, startDaemon } from "../harness.ts";

/** Number of starts; the median counts. */
const starts = 5;
const ratioMax = 3;
const verifiedMsMax = 5_000;
/** Syncs to the disk of RunPodSandbox and CreateContainer: one durable record each, file and folder. */
const syncsMax = { RunPodSandbox: 2, CreateContainer: 2 };

export type StartFigures = {
  pods: number;
  emptyMs: number;
  recordedMs: number;
  /** Time until pods whose namespaces vanished while no daemon ran are reported NOTREADY. */
  verifiedMs: number;
};

function median(values: number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]!;
}

/** Measures from exec to the first answered call. */
async function firstAnswerMs(daemon: Daemon): Promise<number> {
  await daemon.stop();
  const start = performance.now();
  const started = daemon.start();
  while (!existsSync(daemon.socket)) await sleep(1);
  for (;;) {
    using client = connect(`unix://${daemon.socket}`);
    const answer = client.ListPodSandbox({}, { timeoutMs: 5000 }).then(
      () => performance.now() - start,
      () => undefined,
    );
    const ms = await answer;
    if (ms === undefined) continue;
    await started;
    return ms;
  }
}

async function medianStartMs(daemon: Daemon): Promise<number> {
  const measured: number[] = [];
  for (let count = 0; count < starts; count++) measured.push(await firstAnswerMs(daemon));
  return median(measured);
}

async function makePods(daemon: Daemon, count: number): Promise<string[]> {
  const ids: string[] = [];
  let left = count;
  const worker = async () => {
    while (left-- > 0) ids.push(await daemon.runPod(daemon.podConfig()));
  };
  await Promise.all(Array.from({ length: 4 }, worker));
  return ids;
}

/** Removes the network namespaces of some pods while no daemon runs. */
async function verifiedMs(daemon: Daemon, ids: string[]): Promise<number> {
  const gone = [ids[0]!, ids[Math.floor(ids.length / 2)]!, ids.at(-1)!];
  await daemon.stop();
  for (const id of gone) {
    const record = join(daemon.dir, "graph/sandboxes", id);
    const text = spawnSync("grep", ["-rhoE", '/var/run/netns/[^"]+', record], { encoding: "utf8" });
    const path = text.stdout.split("\n")[0]!;
    spawnSync("umount", ["-l", path]);
  }
  const start = performance.now();
  await daemon.start();
  for (;;) {
    const state = { state: runtime.v1.PodSandboxState.SANDBOX_NOTREADY };
    const { items } = await daemon.client.ListPodSandbox({ filter: { state } });
    if (items.length === new Set(gone).size) return performance.now() - start;
    if (performance.now() - start > 60_000) throw new Error(`${items.length} of ${gone.length}`);
    await sleep(20);
  }
}

export async function startFigures(daemon: Daemon, pods: number): Promise<StartFigures> {
  const emptyMs = await medianStartMs(daemon);
  const ids = await makePods(daemon, pods);
  const recordedMs = await medianStartMs(daemon);
  return { pods, emptyMs, recordedMs, verifiedMs: await verifiedMs(daemon, ids) };
}

export function problemsOf(figures: StartFigures): string[] {
  const problems: string[] = [];
  const ratio = figures.recordedMs / figures.emptyMs;
  if (ratio > ratioMax) problems.push(`the first answer takes ${ratio.toFixed(2)} times as long`);
  if (figures.verifiedMs > verifiedMsMax) problems.push(`verified in ${figures.verifiedMs} ms`);
  return problems;
}

/** Counts the daemon's syncs to disk per call. */
async function syncs(daemon: Daemon): Promise<Record<string, number>> {
  const file = join(daemon.dir, "strace.txt");
  const calls = "trace=fsync,fdatasync,syncfs,sync,msync";
  const argv = ["-f", "-qq", "-e", calls, "-o", file, "-p", String(daemon.pid)];
  const trace = spawn("strace", argv);
  await sleep(1500);
  const seen = () =>
    readFileSync(file, "utf8")
      .split("\n")
      .filter((line) => /sync\(|syncfs\(/.test(line));
  const counts: Record<string, number> = {};
  const counted = async <T>(name: string, call: Promise<T>): Promise<T> => {
    const before = seen().length;
    const result = await call;
    await sleep(300);
    counts[name] = seen().length - before;
    return result;
  };
  const pod: PodSandboxConfig = daemon.podConfig();
  const { client } = daemon;
  const podId = await counted("RunPodSandbox", daemon.runPod(pod));
  const id = await counted("CreateContainer", daemon.create(podId, pod, ["sleep", "600"]));
  await counted("StartContainer", client.StartContainer({ container_id: id }));
  await counted("StopContainer", client.StopContainer({ container_id: id }));
  await counted("RemoveContainer", client.RemoveContainer({ container_id: id }));
  await counted("StopPodSandbox", client.StopPodSandbox({ pod_sandbox_id: podId }));
  await counted("RemovePodSandbox", client.RemovePodSandbox({ pod_sandbox_id: podId }));
  trace.kill("SIGINT");
  await new Promise((resolve) => trace.once("exit", resolve));
  return counts;
}

async function main(): Promise<number> {
  const { values } = parseArgs({ options: { pods: { type: "string", default: "100" } } });
  await using daemon = await startDaemon();
  const counts = await syncs(daemon);
  console.log(
    `syncs: ${Object.entries(counts)
      .map((pair) => pair.join(" "))
      .join(", ")}`,
  );
  const figures = await startFigures(daemon, Number(values.pods));
  const { pods, emptyMs, recordedMs } = figures;
  console.log(
    `first answer: ${emptyMs.toFixed(0)} ms with no pod, ${recordedMs.toFixed(0)} ms with ${pods} ` +
      `(${(recordedMs / emptyMs).toFixed(2)} ×, bound ${ratioMax}); ` +
      `all verified in ${figures.verifiedMs.toFixed(0)} ms (bound ${verifiedMsMax})`,
  );
  const problems = problemsOf(figures);
  for (const [name, max] of Object.entries(syncsMax)) {
    const count = counts[name] ?? 0;
    if (count > max) problems.push(`${name} syncs ${count} times, bound ${max}`);
  }
  for (const [name, count] of Object.entries(counts)) {
    if (!(name in syncsMax) && count > 0) problems.push(`${name} syncs ${count} times`);
  }
  for (const problem of problems) console.log(`FAIL ${problem}`);
  return problems.length > 0 ? 1 : 0;
}

if (import.meta.main) process.exitCode = await main();
