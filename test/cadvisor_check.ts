// Checks what a kubelet serves at /metrics/cadvisor and at /stats/summary. It is pure, so that cadvisor.test.ts can test it
// with planted faults.

/** atMs: when it was sampled, if the text says so. */
export type Series = {
  family: string;
  labels: Record<string, string>;
  value: number;
  atMs?: number;
};

/** A pod whose series are checked; containers named "fails" end and restart. */
export type CheckedPod = { name: string; containers: Record<string, unknown> };

/** Parses Prometheus's text format. */
export function parseSeries(text: string): Series[] {
  const found: Series[] = [];
  for (const line of text.split("\n")) {
    const match = /^([a-z_]\w*)\{(.*)\} ([^ ]+)(?: (\d+))?/.exec(line);
    if (match === null) continue;
    const [, family, inner, value, at] = match;
    const pairs = inner!.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g);
    const labels = Object.fromEntries([...pairs].map(([, key, text]) => [key!, text!]));
    const sampled = at === undefined ? {} : { atMs: Number(at) };
    found.push({ family: family!, labels, value: Number(value), ...sampled });
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

/** Returns a line for each series that is missing, there twice, or without its image, id or interface. */
export function problemsIn(series: Series[], pods: CheckedPod[], image: string): string[] {
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

/** The part of /stats/summary that is checked. */
export type Summary = {
  pods: {
    podRef: { name: string };
    network?: { name?: string; rxBytes?: number };
    containers?: { name: string; cpu?: object; memory?: object }[];
  }[];
};

/** Returns a line for each pod without its network, and for each container without CPU or memory. */
export function problemsInSummary(summary: Summary, pods: CheckedPod[]): string[] {
  const problems: string[] = [];
  for (const { name, containers } of pods) {
    const pod = summary.pods.find(({ podRef }) => podRef.name === `${name}-node1`);
    const { network } = pod ?? {};
    const hasOwnNetwork = name !== "alone" && name !== "host";
    if (hasOwnNetwork && (network?.name !== "eth0" || network.rxBytes === undefined)) {
      problems.push(`the summary of ${name} has no network`);
    }
    for (const container of Object.keys(containers)) {
      const found = pod?.containers?.find((one) => one.name === container);
      const isSteady = container !== "fails";
      if (isSteady && (found?.cpu === undefined || found.memory === undefined)) {
        problems.push(`the summary of ${name}/${container} lacks CPU or memory`);
      }
    }
  }
  return problems;
}

const byText = (a: string, b: string) => a.localeCompare(b);

function textOf(labels: Record<string, string>): string {
  const pairs = Object.entries(labels).map(([key, value]) => `${key}=${value}`);
  return pairs.toSorted(byText).join(",");
}

/** Returns the families and labels of each pod and container, without what differs between two runs. */
export function shapeOf(series: Series[]): string[] {
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
