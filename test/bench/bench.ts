// `bun run bench`: what a pod, an exec, a log line and a held pod cost, each as a ratio to its bare
// minimum in the same run; absolute figures are reported, not judged. Exit 1 when a ratio is over its
// bound. Needs root, the built executable and Go (for the client that also does the work by hand).
import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { busybox, type Daemon, startDaemon } from "../harness.ts";
import { pssKib } from "../leaks.ts";

type Figure = { ours: number[]; by_hand: number[] };
type Report = Record<"ready_ms" | "gone_ms" | "exec_ms" | "log_lines_per_s", Figure> & {
  log_lines_lost: number;
  steps_ms: Record<string, number>;
};
type Row = { what: string; ours: string; least: string; ratio: number; bound: string; ok: boolean };

const heldPods = 50;
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

/** The unpacked image: the only layer of busybox. */
function layerOf(daemon: Daemon): string {
  const layers = join(daemon.dir, "graph/layers");
  const found = readdirSync(layers, { recursive: true, encoding: "utf8" }).find((path) =>
    path.endsWith("/bin/busybox"),
  );
  if (found === undefined) throw new Error(`No busybox under ${layers}`);
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

/** MiB a pod that daemon and monitor take, with all their pods held at once. */
async function memory(daemon: Daemon): Promise<{ idle: number; held: number; aPod: number }> {
  const pss = () => daemon.scope.pids().reduce((sum, pid) => sum + pssKib(pid), 0) / 1024;
  await sleep(2000);
  const idle = pss();
  for (let index = 0; index < heldPods; index++) {
    const pod = daemon.podConfig();
    await daemon.run(await daemon.runPod(pod), pod, ["sleep", "3600"]);
  }
  await sleep(2000);
  const held = pss();
  await daemon.removeAllPods();
  return { idle, held, aPod: (held - idle) / heldPods };
}

function median(values: number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]!;
}

/** The median of the rounds' ratios. `atLeast`: more is better. */
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
  await using daemon = await startDaemon({ config: { "log-level": "ERROR" } });
  const held = await memory(daemon);
  const report = await latencies(daemon, client);
  const rows = [
    row("pod + container ready, ms", report.ready_ms, 1.25),
    row("stop + remove, ms", report.gone_ms, 1.25),
    row("exec, ms", report.exec_ms, 1.25),
    row("log, lines/s", report.log_lines_per_s, 0.7, true),
  ];
  print(rows);
  console.log(`log lines lost: ${report.log_lines_lost}`);
  const steps = Object.entries(report.steps_ms).map(([name, ms]) => `${name} ${ms.toFixed(1)}`);
  console.log(`ms, median of all: ${steps.join(", ")}`);
  console.log(
    `memory: ${held.idle.toFixed(1)} MiB idle, ${held.held.toFixed(1)} MiB with ${heldPods} pods: ` +
      `${held.aPod.toFixed(2)} MiB a pod (bound 0.5)`,
  );
  writeFileSync(join(cache, "bench.json"), JSON.stringify({ report, held }, null, 2));
  const good = rows.every((one) => one.ok) && report.log_lines_lost === 0 && held.aPod <= 0.5;
  return good ? 0 : 1;
}

process.exitCode = await main();
