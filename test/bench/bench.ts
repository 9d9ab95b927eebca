// Measures the cost of a pod, an exec, a log line, streamed output, a list, an idle pod and a pull, each as a
// ratio to its bare minimum in the same run; absolute figures are reported, not judged. `bun run bench` exits
// with 1 when a ratio exceeds its bound. Needs root, the built executable, Go (for the client, which also
// does the bare work), skopeo and docker-registry.
import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { idleMs } from "../../src/sys/memory.ts";
import { busybox, type Daemon, startDaemon } from "../harness.ts";
import { pssKib } from "../leaks.ts";
import { median } from "../median.ts";
import { isLate, lagText, pulls } from "./pull.ts";
import { streamed } from "./stream.ts";

type Figure = { ours: number[]; by_hand: number[] };
type Report = Record<"ready_ms" | "gone_ms" | "exec_ms" | "log_lines_per_s", Figure> & {
  log_lines_lost: number;
  steps_ms: Record<string, number>;
};
type Lists = { list: Figure; stats: Figure; statsKeptMs: number[] };
type Listed = { list_ms: number[]; stats_ms: Figure; stats_kept_ms: number[] };
type Row = { what: string; ours: string; least: string; ratio: number; bound: string; ok: boolean };

const heldPods = 50;
const manyRecords = 500;
const cache = join(import.meta.dirname, "../.cache");

function buildClient(): string {
  const client = join(cache, "bench");
  mkdirSync(cache, { recursive: true });
  const options = {
    cwd: import.meta.dirname,
    env: { ...process.env, CGO_ENABLED: "0" },
    stdio: "inherit",
  } as const;
  const done = spawnSync("go", ["build", "-mod=readonly", "-o", client, "."], options);
  if (done.status !== 0) throw new Error("go build failed: the bench needs Go");
  return client;
}

/** Finds the unpacked image: the only layer of busybox. */
function layerOf(daemon: Daemon): string {
  const layers = join(daemon.dir, "graph/layers");
  const found = readdirSync(layers, { recursive: true, encoding: "utf8" }).find((path) =>
    path.endsWith("/bin/busybox"),
  );
  if (found === undefined) throw new Error(`no busybox below ${layers}`);
  return join(layers, found, "../..");
}

async function latencies(daemon: Daemon, client: string): Promise<Report> {
  const pod = daemon.podConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, ["sleep", "3600"]);
  const flags = {
    endpoint: `unix://${daemon.socket}`,
    image: busybox,
    template: join(daemon.dir, "graph/containers", id, "config.json"),
    lower: layerOf(daemon),
    conflist: join(daemon.cniDir, "10-test.conflist"),
    scratch: join(daemon.dir, "bench"),
    "cgroup-parent": daemon.cgroupParent,
  };
  mkdirSync(flags.scratch);
  const argv = Object.entries(flags).map(([name, value]) => `-${name}=${value}`);
  const done = spawnSync(client, [...argv, ...process.argv.slice(2)], { encoding: "utf8" });
  process.stderr.write(done.stderr);
  if (done.status !== 0) throw new Error("the measuring client failed");
  await daemon.removePod(podId);
  return JSON.parse(done.stdout) as Report;
}

/** Measures lists with few and with many records, of the idle pods. */
async function lists(daemon: Daemon, client: string, held: string[]): Promise<Lists> {
  const measure = (running: number) => {
    const argv = [`-endpoint=unix://${daemon.socket}`, `-listed=${held[0]}`, `-running=${running}`];
    const done = spawnSync(client, argv, { encoding: "utf8" });
    process.stderr.write(done.stderr);
    if (done.status !== 0) throw new Error("the measuring client failed");
    return JSON.parse(done.stdout) as Listed;
  };
  const few = measure(held.length);
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  for (let count = held.length; count < manyRecords; count++) {
    await daemon.create(podId, pod, ["true"]);
  }
  const many = measure(0);
  const list = { ours: many.list_ms, by_hand: few.list_ms };
  return { list, stats: few.stats_ms, statsKeptMs: few.stats_kept_ms };
}

/** Measures MiB of daemon and monitor per idle pod, and lists of these pods. */
async function memory(daemon: Daemon, client: string) {
  const pss = () => daemon.scope.pids().reduce((sum, pid) => sum + pssKib(pid), 0) / 1024;
  await sleep(idleMs + 3000);
  const idle = pss();
  const ids: string[] = [];
  for (let index = 0; index < heldPods; index++) {
    const pod = daemon.podConfig();
    const id = await daemon.run(await daemon.runPod(pod), pod, ["sleep", "3600"]);
    ids.push(id);
  }
  await sleep(idleMs + 3000);
  const held = pss();
  const listed = await lists(daemon, client, ids);
  await daemon.removeAllPods();
  return { idle, held, aPod: (held - idle) / heldPods, listed };
}

/** Judges the median of the rounds' ratios. `atLeast`: more is better. */
function row(what: string, figure: Figure, bound: number, atLeast = false): Row {
  const ratio = median(figure.ours.map((ours, index) => ours / figure.by_hand[index]!));
  const digits = atLeast ? 0 : 1;
  return {
    what,
    ours: median(figure.ours).toFixed(digits),
    least: median(figure.by_hand).toFixed(digits),
    ratio,
    bound: `${atLeast ? "≥" : "≤"} ${bound}`,
    ok: atLeast ? ratio >= bound : ratio <= bound,
  };
}

function print(rows: Row[]): void {
  const cells = rows.map((one) => [
    one.what,
    one.ours,
    one.least,
    one.ratio.toFixed(2),
    one.bound,
    one.ok ? "ok" : "OVER",
  ]);
  const head = ["", "ours", "by hand", "ratio", "bound", ""];
  const widths = head.map((_, at) => Math.max(...[head, ...cells].map((line) => line[at]!.length)));
  for (const line of [head, ...cells]) {
    console.log(line.map((cell, at) => cell.padEnd(widths[at]!)).join("  "));
  }
}

async function main(): Promise<number> {
  const client = buildClient();
  const pulled = await pulls();
  await using daemon = await startDaemon({ config: { "log-level": "ERROR" } });
  const held = await memory(daemon, client);
  const report = await latencies(daemon, client);
  const stream = await streamed(daemon);
  const rows = [
    row("pod + container ready, ms", report.ready_ms, 1.25),
    row("stop + remove, ms", report.gone_ms, 1.25),
    row("exec, ms", report.exec_ms, 1.25),
    row("log, lines/s", report.log_lines_per_s, 0.7, true),
    row(`list of ${manyRecords} (and ${heldPods}) records, ms`, held.listed.list, 2),
    row(`stats of ${heldPods} (and ${heldPods} × one), ms`, held.listed.stats, 1),
    row("exec of 1 GiB, MB/s", stream.figure, 0.5, true),
    row("pull of 5 × 20 MB, ms", pulled.large, 0.8),
    row("pull of 5 × 4,000 files, ms", pulled.small, 0.8),
    row("ten equal pulls (and one), ms", pulled.equal, 1.2),
  ];
  print(rows);
  const keptMs = median(held.listed.statsKeptMs).toFixed(1);
  console.log(`stats of ${heldPods} again, within a second of that reading: ${keptMs} ms`);
  console.log(`log lines lost: ${report.log_lines_lost}`);
  const steps = Object.entries(report.steps_ms).map(([name, ms]) => `${name} ${ms.toFixed(1)}`);
  console.log(`ms, median of all: ${steps.join(", ")}`);
  console.log(
    `memory: ${held.idle.toFixed(1)} MiB idle, ${held.held.toFixed(1)} MiB with ${heldPods} pods: ` +
      `${held.aPod.toFixed(2)} MiB a pod (bound 0.5)`,
  );
  console.log(`memory while streaming: ${stream.peakMiB.toFixed(0)} MiB at most (bound 150)`);
  console.log(
    `while pulling: the daemon takes ${pulled.peakMiB.toFixed(0)} MiB more at most (bound 40), ` +
      `${lagText(pulled)}, an answer after ` +
      `${Math.max(...pulled.wait.ours).toFixed(0)} ms (${Math.max(...pulled.wait.by_hand).toFixed(0)})`,
  );
  writeFileSync(
    join(cache, "bench.json"),
    JSON.stringify({ report, held, stream, pulled }, null, 2),
  );
  const small = held.aPod <= 0.5 && stream.peakMiB <= 150 && pulled.peakMiB <= 40;
  const good =
    rows.every((one) => one.ok) && report.log_lines_lost === 0 && small && !isLate(pulled);
  return good ? 0 : 1;
}

process.exitCode = await main();
