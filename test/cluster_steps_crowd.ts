// Runs a crowd of probed pods on a node of the test cluster, restarts the runtime and the kubelet beneath them, and removes
// them: with isulad-ts and, for comparison, with containerd.
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { parseSeries, type Series } from "./cadvisor_check.ts";
import { thingsOf } from "./cluster_leftovers.ts";
import type { ClusterNode } from "./cluster_node.ts";
import {
  type Cluster,
  eventually,
  inNamespace,
  checkUnchanged,
  readyPods,
  workload,
} from "./cluster_pods.ts";
import { pssKib } from "./leaks.ts";

const probes = {
  readinessProbe: { httpGet: { path: "/", port: 8080 }, periodSeconds: 5, timeoutSeconds: 5 },
  livenessProbe: { exec: { command: ["true"] }, periodSeconds: 30, timeoutSeconds: 20 },
};
const restMs = 60_000;

async function metricsOf(cluster: Cluster, node: string, path: string): Promise<Series[]> {
  return parseSeries(await cluster.control.text(`/api/v1/nodes/${node}/proxy/${path}`));
}

/** The bound of the bucket of a histogram that holds the quantile, in milliseconds. */
export function quantileMs(series: Series[], family: string, part: number): number {
  const buckets = series
    .filter((one) => one.family === `${family}_bucket`)
    .map(({ labels, value }) => ({ bound: labels["le"]!, value }));
  const total = Math.max(...buckets.map(({ value }) => value));
  const bound = buckets.find(({ value }) => value >= total * part)?.bound ?? "NaN";
  return Number(bound === "+Inf" ? "Infinity" : bound) * 1000;
}

/** Returns the 99th percentile of the kubelet's relists since its start. */
async function relistOf(cluster: Cluster, node: string): Promise<string> {
  const series = await metricsOf(cluster, node, "metrics");
  return `≤ ${quantileMs(series, "kubelet_pleg_relist_duration_seconds", 0.99)} ms`;
}

const operations = [
  "list_podsandbox",
  "podsandbox_status",
  "list_containers",
  "container_status",
  "run_podsandbox",
  "create_container",
  "start_container",
  "exec_sync",
];

/** Returns the mean time of the kubelet's calls since its start, in ms. */
async function operationsOf(cluster: Cluster, node: string): Promise<string> {
  const series = await metricsOf(cluster, node, "metrics");
  const of = (part: string, operation: string) =>
    series.find(
      ({ family, labels }) =>
        family === `kubelet_runtime_operations_duration_seconds_${part}` &&
        labels["operation_type"] === operation,
    )?.value ?? Number.NaN;
  const mean = (operation: string) => (of("sum", operation) * 1000) / of("count", operation);
  return operations
    .filter((operation) => of("count", operation) > 0)
    .map((operation) => `${operation} ${mean(operation).toFixed(1)} ms`)
    .join(", ");
}

/** Counts the results of the kubelet's probes since its start, by their kind. */
async function probesOf(cluster: Cluster, node: string): Promise<Record<string, number>> {
  const counts: Record<string, number> = {};
  for (const { family, labels, value } of await metricsOf(cluster, node, "metrics/probes")) {
    if (family !== "prober_probe_total") continue;
    const result = labels["result"] ?? "";
    counts[result] = (counts[result] ?? 0) + value;
  }
  return counts;
}

/** Memory of a node's runtime in MiB: daemon, monitor, shims; without the pods' own processes. */
function memoryMib(node: ClusterNode): number {
  const pids = node.machine
    .processes()
    .filter((pid) => /^(isulad-ts|containerd)/.test(nameOf(pid)));
  return Math.round(pids.reduce((sum, pid) => sum + pssKib(pid), 0) / 1024);
}

function nameOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/comm`, "utf8");
  } catch {
    return ""; // It ended meanwhile.
  }
}

const secondsSince = (startMs: number) => `${Math.round((Date.now() - startMs) / 1000)} s`;

/** Starts the pods, lets them rest, restarts the runtime and the kubelet; the pods keep their containers. */
async function fill(cluster: Cluster, node: ClusterNode, namespace: string): Promise<string> {
  const { control, pods: count } = cluster;
  const figures: string[] = [];
  const startMs = Date.now();
  const pods = { node: node.name, container: probes };
  const meta = { name: "web", namespace };
  await control.apply(workload(cluster, "Deployment", meta, { pods, spec: { replicas: count } }));
  const first = await readyPods(cluster, namespace, count, "", 900_000);
  figures.push(`${count} pods ready in ${secondsSince(startMs)}`);
  await sleep(restMs);
  figures.push(
    `runtime ${memoryMib(node)} MiB`,
    `relist p99 ${await relistOf(cluster, node.name)}`,
    await operationsOf(cluster, node.name),
  );
  const restartMs = Date.now();
  await node.daemon.stop();
  await node.startDaemon();
  figures.push(`answers ${secondsSince(restartMs)} after a restart`);
  await node.kubelet.stop("SIGKILL");
  await node.startKubelet();
  await eventually("the kubelet probes all pods again", async () => {
    const { successful = 0 } = await probesOf(cluster, node.name);
    return successful >= 2 * count;
  });
  await sleep(restMs);
  await checkUnchanged(cluster, namespace, first);
  figures.push(`then relist p99 ${await relistOf(cluster, node.name)}`);
  figures.push(`probes ${JSON.stringify(await probesOf(cluster, node.name))}`);
  return figures.join(", ");
}

async function crowdOn(cluster: Cluster, node: ClusterNode): Promise<string> {
  const before = await thingsOf(node);
  const namespace = `crowd-${node.name}`;
  let endMs = 0;
  const figures = await inNamespace(cluster, namespace, async () => {
    const filled = await fill(cluster, node, namespace);
    endMs = Date.now();
    return filled;
  });
  const removed = secondsSince(endMs);
  let left: string[] = [];
  await eventually("nothing is left", async () => {
    left = [...(await thingsOf(node)).difference(before)];
    return left.length === 0;
  }).catch((cause: unknown) => {
    throw new Error(`left on ${node.name}: ${left.slice(0, 20).join(", ")}`, { cause });
  });
  const relist = await relistOf(cluster, node.name);
  return `${node.runtime}: ${figures}, removed in ${removed} (relist p99 ${relist}), nothing left after ${secondsSince(endMs)}`;
}

export async function crowd(cluster: Cluster): Promise<string> {
  const runtimes = [...new Set(cluster.nodes.map(({ runtime }) => runtime))];
  const results: string[] = [];
  for (const runtime of runtimes) {
    const node = cluster.nodes.findLast((one) => one.runtime === runtime)!;
    results.push(await crowdOn(cluster, node));
    console.log(results.at(-1));
  }
  return results.join("; ");
}
