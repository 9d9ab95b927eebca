// Compares what a real kubelet with default gates serves at /metrics/cadvisor with what it must serve: each
// container and pod under its names, once. `bun test/cadvisor.ts [--gate] [--json FILE] [--endpoint SOCKET]`
// --gate turns on PodAndContainerStatsFromCRI; --json writes the series, to compare them with another run's
// (--with FILE); --endpoint names another runtime's socket, whose containerd API is at the same place.
// KUBELET=path names an existing kubelet; otherwise one is built. Needs root.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { spawnSync } from "node:child_process";
import { busybox, executable, startDaemon } from "./harness.ts";
import { makeCgroups } from "./host.ts";
import { buildKubelet, Kubelet, Netns } from "./kubelet_node.ts";
import type { Manifest } from "./kubelet_pods.ts";

const cache = join(import.meta.dirname, ".cache");
/** cAdvisor reads each container every 10 s at first, and finds new ones within a minute at the latest. */
const settleMs = 75_000;

const forever = "trap exit TERM; while :; do usleep 200000; done";
/** Writes to its log and its disk, so that every series has a value. */
const busy =
  "while :; do echo x; dd if=/dev/zero of=/f bs=4k count=8 conv=fsync 2>/dev/null; usleep 300000; done";

type Pod = { name: string; spec: object; containers: Record<string, string> };
const pods: Pod[] = [
  { name: "web", spec: {}, containers: { app: busy, side: forever } },
  { name: "crash", spec: {}, containers: { fails: "usleep 500000; exit 1", stays: forever } },
  // Its first container, which stands for the pod, is the one that ends.
  { name: "alone", spec: {}, containers: { fails: "sleep 3; exit 1" } },
  { name: "host", spec: { hostNetwork: true }, containers: { app: forever } },
  { name: "shared", spec: { shareProcessNamespace: true }, containers: { app: forever } },
];

function manifestOf({ name, spec, containers }: Pod): Manifest {
  const json = JSON.stringify({
    apiVersion: "v1",
    kind: "Pod",
    metadata: { name, namespace: "shop" },
    spec: {
      terminationGracePeriodSeconds: 1,
      ...spec,
      containers: Object.entries(containers).map(([container, script]) => ({
        name: container,
        image: busybox,
        imagePullPolicy: "Never",
        command: ["sh", "-c", script],
      })),
    },
  });
  return { name, json, expected: [] };
}

type Series = { family: string; labels: Record<string, string>; value: number };

/** Parses Prometheus's text format. */
export function parseSeries(text: string): Series[] {
  const found: Series[] = [];
  for (const line of text.split("\n")) {
    const match = /^([a-z_]\w*)\{(.*)\} ([^ ]+)/.exec(line);
    if (match === null) continue;
    const [, family, inner, value] = match;
    const pairs = inner!.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g);
    const labels = Object.fromEntries([...pairs].map(([, key, text]) => [key!, text!]));
    found.push({ family: family!, labels, value: Number(value) });
  }
  return found;
}

/** Families that dashboards and alerts use, of each container and of each pod. */
const ofContainers = [
  "container_cpu_usage_seconds_total",
  "container_memory_working_set_bytes",
  "container_memory_rss",
  "container_memory_usage_bytes",
  "container_spec_cpu_shares",
  "container_start_time_seconds",
  "container_last_seen",
];
const ofPods = ["container_network_receive_bytes_total", "container_network_transmit_bytes_total"];

function problemsIn(series: Series[], image: string): string[] {
  const problems: string[] = [];
  const having = (family: string, labels: Record<string, string>) =>
    series.filter(
      (one) =>
        one.family === family &&
        Object.entries(labels).every(([key, value]) => (one.labels[key] ?? "") === value),
    );
  for (const { name: pod, containers } of pods) {
    for (const container of Object.keys(containers)) {
      for (const family of ofContainers) {
        const labels = { namespace: "shop", pod: `${pod}-node1`, container };
        const found = having(family, labels);
        // A container that crashes may be between two lives.
        const isSteady = container !== "fails";
        if (isSteady && found.length !== 1) {
          problems.push(`${family} of ${pod}/${container}: ${found.length} series`);
        }
        for (const one of found) {
          if (one.labels["image"] !== image)
            problems.push(`${family} of ${pod}/${container} has image ${one.labels["image"]}`);
          if (!/^[0-9a-f]{64}$/.test(one.labels["name"] ?? ""))
            problems.push(`${family} of ${pod}/${container} has no id`);
        }
      }
    }
    for (const family of ofPods) {
      const eth0 = having(family, { namespace: "shop", pod: `${pod}-node1`, interface: "eth0" });
      // A node may have an eth0 itself, or not.
      if (pod !== "alone" && pod !== "host" && eth0.length !== 1) {
        problems.push(`${family} of ${pod}: ${eth0.length} series of eth0, not 1`);
      }
    }
  }
  const keys = series.map(({ family, labels }) => `${family} ${textOf(labels)}`);
  const twice = keys.filter((key, index) => keys.indexOf(key) !== index);
  return [...problems, ...twice.map((key) => `twice: ${key}`)];
}

const byText = (a: string, b: string) => a.localeCompare(b);

function textOf(labels: Record<string, string>): string {
  const pairs = Object.entries(labels).map(([key, value]) => `${key}=${value}`);
  return pairs.toSorted(byText).join(",");
}

/** The families and labels of each pod and container, without what differs between two runs. */
function shapeOf(series: Series[]): string[] {
  const lines = series
    .filter(
      ({ labels }) => labels["namespace"] === "shop" && !/^(alone|crash)/.test(labels["pod"] ?? ""),
    )
    .map(({ family, labels }) => {
      const { pod, container, device = "", interface: nic = "", ...others } = labels;
      const keys = Object.keys(others).toSorted(byText).join(",");
      // The node's interfaces depend on where the runtime runs.
      const network = pod?.startsWith("host-") && nic !== "" ? "interface" : nic;
      return `${pod}/${container} ${family} ${network}${device === "" ? "" : "device"} {${keys}}`;
    });
  return [...new Set(lines)].toSorted(byText);
}

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      gate: { type: "boolean", default: false },
      json: { type: "string" },
      with: { type: "string" },
      endpoint: { type: "string" },
    },
  });
  mkdirSync(cache, { recursive: true });
  const program = buildKubelet(cache);
  using netns = new Netns(`isulad-cadvisor-${process.pid}`);
  await using daemon = await startDaemon({
    config: { "restrict-oom-score-adj": true },
    executable: netns.wrap(executable, cache),
  });
  const socket = values.endpoint ?? join(daemon.dir, "containerd.sock");
  if (values.endpoint === undefined) {
    daemon.writeConfig({ "containerd-socket": socket, "restrict-oom-score-adj": true });
    await daemon.restart();
  }
  makeCgroups([daemon.cgroupParent.slice(1)]);
  const { dir, cgroupParent } = daemon;
  await using kubelet = new Kubelet(program, {
    dir,
    cgroupParent,
    netns,
    endpoint: values.endpoint ?? daemon.socket,
    config: {
      readOnlyPort: 10255,
      crashLoopBackOff: { maxContainerRestartPeriod: "1s" },
      featureGates: { PodAndContainerStatsFromCRI: values.gate, KubeletCrashLoopBackOffMax: true },
    },
    flags: [`--containerd=${socket}`],
  });
  for (const pod of pods) kubelet.add(manifestOf(pod));
  await sleep(settleMs);
  const scrape = () => {
    const url = "http://127.0.0.1:10255/metrics/cadvisor";
    const words = ["netns", "exec", netns.name, "curl", "-sf", "--max-time", "20", url];
    return parseSeries(spawnSync("ip", words, { encoding: "utf8", maxBuffer: 1 << 28 }).stdout);
  };
  const series = scrape();
  const problems = problemsIn(series, busybox);
  if (!kubelet.runs) problems.push("the kubelet ended");
  const shape = shapeOf(series);
  if (values.json !== undefined) writeFileSync(values.json, JSON.stringify(shape, null, 1));
  if (values.with !== undefined) {
    const other = new Set<string>(JSON.parse(readFileSync(values.with, "utf8")));
    const own = new Set(shape);
    problems.push(...[...other.difference(own)].map((line) => `missing: ${line}`));
    problems.push(...[...own.difference(other)].map((line) => `additional: ${line}`));
  }
  if (problems.length > 0) writeFileSync(join(cache, "kubelet.log"), kubelet.lines.join("\n"));
  for (const problem of problems) console.log(`  ${problem}`);
  console.log(`${series.length} series, ${shape.length} kinds, ${problems.length} problems`);
  return problems.length === 0 ? 0 : 1;
}

if (import.meta.main) process.exitCode = await main();
