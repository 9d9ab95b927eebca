// Compares the statistics that kubelets of the test cluster serve for equal pods: on a node of isulad-ts and on
// containerd's, in /stats/summary (what `kubectl top` shows) and in /metrics/cadvisor.
import { setTimeout as sleep } from "node:timers/promises";
import { parseSeries, type Series, shapeOf } from "./cadvisor_check.ts";
import { type Cluster, expect, inNamespace, pod, readyPods } from "./cluster_pods.ts";

/** Holds 40 MiB, uses a part of a processor that its limit fixes, writes a log and 8 MiB of its root file system. */
const script = `dd if=/dev/zero of=/dev/shm/memory bs=1M count=40 2>/dev/null
dd if=/dev/zero of=/written bs=1M count=8 2>/dev/null
yes 0123456789 | head -c 2000000
trap 'exit 0' TERM
while :; do :; done & wait`;
const resources = { limits: { cpu: "150m", memory: "128Mi" } };

type Usage = { usageNanoCores?: number; workingSetBytes?: number; rssBytes?: number };
type Used = { usedBytes?: number };
type PodStats = {
  podRef: { name: string };
  cpu?: Usage;
  memory?: Usage;
  process_stats?: { process_count?: number };
  "ephemeral-storage"?: Used;
  containers: { name: string; cpu: Usage; memory: Usage; rootfs: Used; logs: Used }[];
};
type Figures = Record<string, number>;

async function summaryOf(cluster: Cluster, node: string, name: string): Promise<PodStats> {
  const path = `/api/v1/nodes/${node}/proxy/stats/summary`;
  const { pods } = await cluster.control.get<{ pods: PodStats[] }>(path);
  const found = pods.find(({ podRef }) => podRef.name === name);
  if (found === undefined) throw new Error(`the summary of ${node} lacks ${name}`);
  return found;
}

/** The names of all fields of a value, with the path to each. */
function fieldsOf(value: unknown, path = ""): string[] {
  if (typeof value !== "object" || value === null) return [path];
  if (Array.isArray(value)) return value.flatMap((one) => fieldsOf(one, `${path}[]`));
  return Object.entries(value).flatMap(([key, one]) => fieldsOf(one, `${path}.${key}`));
}

function figuresOf(stats: PodStats): Figures {
  const [container] = stats.containers;
  const given: Record<string, number | undefined> = {
    "pod CPU (millicores)": stats.cpu?.usageNanoCores,
    "container CPU (millicores)": container?.cpu.usageNanoCores,
    "pod working set": stats.memory?.workingSetBytes,
    "container working set": container?.memory.workingSetBytes,
    "container rss": container?.memory.rssBytes,
    "rootfs used": container?.rootfs.usedBytes,
    "log used": container?.logs.usedBytes,
    "pod storage": stats["ephemeral-storage"]?.usedBytes,
    processes: stats.process_stats?.process_count,
  };
  const scale = (name: string, value: number) => (name.includes("milli") ? value / 1e6 : value);
  return Object.fromEntries(
    Object.entries(given).map(([name, value]) => [name, scale(name, value ?? Number.NaN)]),
  );
}

async function seriesOf(cluster: Cluster, node: string): Promise<Series[]> {
  return parseSeries(await cluster.control.text(`/api/v1/nodes/${node}/proxy/metrics/cadvisor`));
}

/** CPU of a container between two readings of its counter, in millicores. */
function rateOf(first: Series[], second: Series[], seconds: number): number {
  const total = (series: Series[]) =>
    series.find(
      ({ family, labels }) =>
        family === "container_cpu_usage_seconds_total" &&
        labels["namespace"] === "shop" &&
        labels["container"] === "app",
    )?.value ?? Number.NaN;
  return ((total(second) - total(first)) / seconds) * 1000;
}

/** The difference that is allowed: processors are shared by all nodes; a pause process is containerd's alone. */
const noise = 0.25;

export function stats(cluster: Cluster): Promise<string> {
  const namespace = "shop";
  return inNamespace(cluster, namespace, async () => {
    const { control, nodes } = cluster;
    const compared = ["isulad-ts", "containerd"].map(
      (name) => nodes.find(({ runtime }) => runtime === name)?.name,
    );
    const [ours, theirs] = compared;
    if (ours === undefined || theirs === undefined)
      throw new Error("it takes a node of each runtime");
    for (const node of [ours, theirs]) {
      const options = { node, script, container: { resources } };
      await control.apply(pod(cluster, { name: `busy-${node}`, namespace }, options));
    }
    await readyPods(cluster, namespace, 2);
    await sleep(60_000);
    const first = [await seriesOf(cluster, ours), await seriesOf(cluster, theirs)];
    const startMs = Date.now();
    await sleep(60_000);
    const second = [await seriesOf(cluster, ours), await seriesOf(cluster, theirs)];
    const seconds = (Date.now() - startMs) / 1000;
    const summaries = [ours, theirs].map((node) => summaryOf(cluster, node, `busy-${node}`));
    const [a, b] = (await Promise.all(summaries)) as [PodStats, PodStats];
    const problems = differences("summary", fieldsOf(a), fieldsOf(b));
    const plain = (series: Series[]) =>
      shapeOf(series).map((line) => line.replace(/^\S+-node\d/, "busy"));
    problems.push(...differences("cadvisor", plain(second[0]!), plain(second[1]!)));
    const rates = [0, 1].map((index) => rateOf(first[index]!, second[index]!, seconds));
    const figures: [Figures, Figures] = [figuresOf(a), figuresOf(b)];
    for (const index of [0, 1] as const)
      figures[index]["cadvisor CPU (millicores)"] = rates[index]!;
    const table = Object.keys(figures[0]).map((name) => {
      const [mine, other] = [figures[0][name]!, figures[1][name]!];
      if (!(Math.abs(mine - other) <= noise * Math.max(mine, other)))
        problems.push(`${name}: ${mine} beside ${other}`);
      return `${name} ${Math.round(mine)} beside ${Math.round(other)}`;
    });
    expect(problems.length === 0, `${problems.join("\n")}\nof: ${table.join(", ")}`);
    return table.join(", ");
  });
}

function differences(what: string, mine: string[], theirs: string[]): string[] {
  const [left, right] = [new Set(mine), new Set(theirs)];
  return [
    ...[...left.difference(right)].map((one) => `only isulad-ts has in ${what}: ${one}`),
    ...[...right.difference(left)].map((one) => `only containerd has in ${what}: ${one}`),
  ];
}
