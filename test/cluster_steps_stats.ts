// Compares the statistics that kubelets of the test cluster serve for equal pods: on a node of isulad-ts and on
// containerd's, in /stats/summary, in /metrics/cadvisor, and in /metrics/resource as `kubectl top` shows it.
import { setTimeout as sleep } from "node:timers/promises";
import { parseSeries, type Series, shapeOf } from "./cadvisor_check.ts";
import { type Cluster, expect, inNamespace, pod, readyPods } from "./cluster_pods.ts";
import { startMetricsServer, top } from "./cluster_top.ts";

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

/** CPU of a container between two samples of its counter, in millicores. cAdvisor takes one in 10 s or more. */
function rateOf(first: Series[], second: Series[]): number {
  const sample = (series: Series[]) =>
    series.find(
      ({ family, labels }) =>
        family === "container_cpu_usage_seconds_total" &&
        labels["namespace"] === "shop" &&
        labels["container"] === "app",
    );
  const [from, to] = [sample(first), sample(second)];
  if (from?.atMs === undefined || to?.atMs === undefined) return Number.NaN;
  return ((to.value - from.value) / (to.atMs - from.atMs)) * 1e6;
}

/** cAdvisor finds a new container within a minute. */
const settleMs = 60_000;
const readingsMax = 7;
const readingMs = 10_000;
/** The difference that is allowed: processors are shared by all nodes; a pause process is containerd's alone. */
const noise = 0.25;

/** What is read of a node, several times. */
class Readings {
  readonly #cluster: Cluster;
  readonly #node: string;
  readonly summaries: PodStats[] = [];
  readonly series: Series[][] = [];

  constructor(cluster: Cluster, node: string) {
    this.#cluster = cluster;
    this.#node = node;
  }

  async read(): Promise<void> {
    this.summaries.push(await summaryOf(this.#cluster, this.#node, `busy-${this.#node}`));
    this.series.push(await seriesOf(this.#cluster, this.#node));
  }

  get fields(): string[] {
    return fieldsOf(this.summaries.at(-1));
  }

  /** The kinds of series, without the name of the node. */
  get kinds(): string[] {
    return shapeOf(this.series.at(-1)!).map((line) => line.replace(/^busy-\w+/, "busy"));
  }

  /** The mean of each figure. */
  get figures(): Figures {
    const all = this.summaries.map(figuresOf);
    const mean = (name: string) =>
      all.reduce((sum, one) => sum + one[name]!, 0) / this.summaries.length;
    const means = Object.fromEntries(Object.keys(all[0]!).map((name) => [name, mean(name)]));
    const [first, last] = [this.series[0]!, this.series.at(-1)!];
    return { ...means, "cadvisor CPU (millicores)": rateOf(first, last) };
  }
}

export function stats(cluster: Cluster): Promise<string> {
  const namespace = "shop";
  return inNamespace(cluster, namespace, async () => {
    const { control, nodes } = cluster;
    const readings = ["isulad-ts", "containerd"].map((name) => {
      const node = nodes.find(({ runtime }) => runtime === name)?.name;
      if (node === undefined) throw new Error(`no node runs ${name}`);
      return { node, reading: new Readings(cluster, node) };
    });
    for (const { node } of readings) {
      const options = { node, script, container: { resources } };
      await control.apply(pod(cluster, { name: `busy-${node}`, namespace }, options));
    }
    await readyPods(cluster, namespace, 2);
    await using _ = await startMetricsServer(control);
    await sleep(settleMs);
    for (let count = 0; count < readingsMax; count++) {
      for (const { reading } of readings) await reading.read();
      await sleep(readingMs);
    }
    const [ours, theirs] = readings.map(({ reading }) => reading) as [Readings, Readings];
    const problems = [
      ...differences("the summary", ours.fields, theirs.fields),
      ...differences("cadvisor", ours.kinds, theirs.kinds),
    ];
    const [mine, others] = (await Promise.all(
      readings.map(async ({ node, reading }) => ({
        ...reading.figures,
        ...(await topFigures(cluster, node, namespace)),
      })),
    )) as [Figures, Figures];
    const shown = await top(
      control,
      ["node"],
      nodes.map(({ name }) => name),
    );
    const table = Object.keys(mine).map((name) => {
      const [a, b] = [mine[name]!, others[name]!];
      if (!(Math.abs(a - b) <= noise * Math.max(a, b))) problems.push(`${name}: ${a} beside ${b}`);
      return `${name} ${Math.round(a)} beside ${Math.round(b)}`;
    });
    expect(problems.length === 0, `${problems.join("\n")}\nof: ${table.join(", ")}`);
    const busy = [...shown].map(
      ([name, { millicores, mebibytes }]) => `${name} ${millicores}m ${mebibytes}Mi`,
    );
    return `${table.join(", ")}; kubectl top node: ${busy.join(", ")}`;
  });
}

async function topFigures(cluster: Cluster, node: string, namespace: string): Promise<Figures> {
  const name = `busy-${node}`;
  const used = (await top(cluster.control, ["pod", "-n", namespace], [name])).get(name)!;
  return {
    "kubectl top CPU (millicores)": used.millicores,
    "kubectl top memory (MiB)": used.mebibytes,
  };
}

function differences(what: string, mine: string[], theirs: string[]): string[] {
  const [left, right] = [new Set(mine), new Set(theirs)];
  return [
    ...[...left.difference(right)].map((one) => `only isulad-ts has in ${what}: ${one}`),
    ...[...right.difference(left)].map((one) => `only containerd has in ${what}: ${one}`),
  ];
}
