// Runs a crowd of probed pods on a node of the test cluster, restarts the runtime and the kubelet beneath them, and removes
// them: with isulad-ts and, for comparison, with containerd.
import { readFileSync } from "node:fs";
import { thingsOf } from "./cluster_leftovers.ts";
import type { ClusterNode } from "./cluster_node.ts";
import {
  type Cluster,
  eventually,
  expect,
  inNamespace,
  podsIn,
  readyPods,
  workload,
} from "./cluster_pods.ts";
import { unchanged } from "./cluster_steps_upgrade.ts";
import { memoryKib, pssKib } from "./leaks.ts";
import { parseSeries } from "./cadvisor_check.ts";

const probes = {
  readinessProbe: { httpGet: { path: "/", port: 8080 }, periodSeconds: 5, timeoutSeconds: 5 },
  livenessProbe: { exec: { command: ["true"] }, periodSeconds: 30, timeoutSeconds: 20 },
};

/** Returns a quantile of a histogram of the kubelet since its start, in milliseconds: the bound of its bucket. */
async function quantileMs(cluster: Cluster, node: string, family: string, part: number) {
  const text = await cluster.control.text(`/api/v1/nodes/${node}/proxy/metrics`);
  const buckets = parseSeries(text)
    .filter((one) => one.family === `${family}_bucket`)
    .map(({ labels, value }) => ({
      bound: Number(labels["le"]?.replace("+Inf", "Infinity")),
      value,
    }));
  const total = Math.max(...buckets.map(({ value }) => value));
  const bound = buckets.find(({ value }) => value >= total * part)?.bound ?? Number.NaN;
  return Math.round(bound * 1000);
}

/** Memory of a node's runtime in MiB: daemon, monitor, shims; without the pods' own processes. */
function memoryMib(node: ClusterNode): number {
  const names = /^(isulad-ts|containerd)/;
  const pids = node.machine.processes().filter((pid) => names.test(commandOf(pid)));
  return Math.round(pids.reduce((sum, pid) => sum + pssKib(pid), 0) / 1024);
}

function commandOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/comm`, "utf8");
  } catch {
    return ""; // It ended meanwhile.
  }
}

const secondsSince = (startMs: number) => `${Math.round((Date.now() - startMs) / 1000)} s`;

async function crowdOn(cluster: Cluster, node: ClusterNode): Promise<string> {
  const { control, pods: count } = cluster;
  const before = await thingsOf(node);
  const namespace = `crowd-${node.name}`;
  const figures = await inNamespace(cluster, namespace, async () => {
    const startMs = Date.now();
    const pods = { node: node.name, container: probes };
    const meta = { name: "web", namespace };
    await control.apply(workload(cluster, "Deployment", meta, { pods, spec: { replicas: count } }));
    const first = await readyPods(cluster, namespace, count, "", 900_000);
    const started = secondsSince(startMs);
    const memory = memoryMib(node);
    const dirty = Math.round(memoryKib(node.daemon.pid, "Private_Dirty") / 1024);
    const restartMs = Date.now();
    await node.daemon.stop();
    await node.startDaemon();
    const restarted = secondsSince(restartMs);
    await node.kubelet.stop("SIGKILL");
    await node.startKubelet();
    await eventually("the kubelet probes its pods again", async () => {
      const heard = await quantileMs(cluster, node.name, "prober_probe_duration_seconds", 0.5);
      return !Number.isNaN(heard);
    });
    await new Promise((resolve) => setTimeout(resolve, 60_000));
    unchanged(first, await podsIn(cluster, namespace));
    const relist = await quantileMs(
      cluster,
      node.name,
      "kubelet_pleg_relist_duration_seconds",
      0.99,
    );
    return `${count} pods ready in ${started}, runtime ${memory} MiB (its daemon ${dirty} MiB dirty), answers ${restarted} after a restart, relist p99 ≤ ${relist} ms`;
  });
  const gone = Date.now();
  let left: string[] = [];
  await eventually("nothing is left", async () => {
    left = [...(await thingsOf(node)).difference(before)];
    return left.length === 0;
  }).catch((cause: unknown) => {
    throw new Error(`left on ${node.name}: ${left.slice(0, 20).join(", ")}`, { cause });
  });
  return `${node.runtime}: ${figures}, nothing left ${secondsSince(gone)} after the namespace`;
}

export async function crowd(cluster: Cluster): Promise<string> {
  const runtimes = new Set(cluster.nodes.map(({ runtime }) => runtime));
  const results: string[] = [];
  for (const runtime of runtimes) {
    const node = cluster.nodes.find((one) => one.runtime === runtime)!;
    results.push(await crowdOn(cluster, node));
  }
  expect(results.length > 0, "there is no node");
  return results.join("; ");
}
