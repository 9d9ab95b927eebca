// Compares what a real kubelet with default gates serves at /metrics/cadvisor with what it must serve: each
// container and pod under its names, once (cadvisor_check.ts). `bun test/cadvisor.ts [--gate] [--json FILE]
// [--with FILE] [--endpoint SOCKET]` exits with 1 on a problem. `--gate` turns on PodAndContainerStatsFromCRI;
// `--json` writes the kinds of series to a file; `--with` compares them with the file of another run;
// `--endpoint` names another runtime's socket, which serves containerd's API, too. KUBELET=path names an
// existing kubelet; otherwise the run builds one of KUBELET_VERSION. Needs root.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { spawnSync } from "node:child_process";
import {
  parseSeries,
  problemsIn,
  problemsInSummary,
  type Summary,
  shapeOf,
} from "./cadvisor_check.ts";
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
    config: { readOnlyPort: 10255 },
    featureGates: { PodAndContainerStatsFromCRI: values.gate },
    flags: [`--containerd=${socket}`],
  });
  for (const pod of pods) kubelet.add(manifestOf(pod));
  await sleep(settleMs);
  const get = (path: string) => {
    const url = `http://127.0.0.1:10255${path}`;
    const words = ["netns", "exec", netns.name, "curl", "-sf", "--max-time", "20", url];
    return spawnSync("ip", words, { encoding: "utf8", maxBuffer: 1 << 28 }).stdout;
  };
  const series = parseSeries(get("/metrics/cadvisor"));
  const problems = problemsIn(series, pods, busybox);
  problems.push(...problemsInSummary(JSON.parse(get("/stats/summary")) as Summary, pods));
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
