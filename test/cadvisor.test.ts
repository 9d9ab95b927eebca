// Tests the checker of /metrics/cadvisor with planted faults. The run itself is long: `bun test/cadvisor.ts`.
import { expect, test } from "bun:test";
import {
  parseSeries,
  problemsIn,
  problemsInSummary,
  type Series,
  shapeOf,
  type Summary,
} from "./cadvisor_check.ts";

const image = "registry.test/busybox:1";
const pods = [
  { name: "web", containers: { app: "" } },
  { name: "host", containers: { app: "", fails: "" } },
];
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
const rss = 'container_memory_rss{container="app",image="registry.test/busybox:1"';

/** What a kubelet serves of the two pods, between two lives of the container that fails. */
function served(): string {
  const lines = ["# HELP container_last_seen Last time", "# TYPE container_last_seen gauge"];
  for (const pod of ["web-node1", "host-node1"]) {
    const of = `namespace="shop",pod="${pod}"`;
    const container = `container="app",image="${image}",name="${"0a".repeat(32)}",${of}`;
    lines.push(...ofContainers.map((family) => `${family}{${container}} 7 1700000000000`));
    const nic = pod.startsWith("web") ? "eth0" : "ens3";
    lines.push(...ofPods.map((family) => `${family}{image="",interface="${nic}",${of}} 1e+06`));
  }
  return lines.join("\n");
}

const problems = (text: string) => problemsIn(parseSeries(text), pods, image);
const lineOf = (start: string) =>
  served()
    .split("\n")
    .find((line) => line.startsWith(start))!;
/** The passing text with its first line of this start changed. */
const but = (start: string, change: (line: string) => string) =>
  served().replace(lineOf(start), change(lineOf(start)));

test("each series of each container and pod, once, passes", () => {
  expect(problems(served())).toEqual([]);
});

test.each([
  ["a missing series", but(rss, () => ""), ["container_memory_rss of web/app: 0 series"]],
  [
    "a series that is there twice",
    but(rss, (line) => `${line}\n${line}`),
    [
      "container_memory_rss of web/app: 2 series",
      expect.stringMatching(/^twice: container_memory_rss container=app,/),
    ],
  ],
  [
    "a pod's series that is there twice",
    but(ofPods[0]!, (line) => `${line}\n${line}`),
    [
      `${ofPods[0]} of web: 2 series of eth0, not 1`,
      expect.stringMatching(/^twice: container_network_receive_bytes_total image=,interface=eth0/),
    ],
  ],
  [
    "a wrong image",
    but(rss, (line) => line.replace("busybox:1", "busybox:2")),
    ["container_memory_rss of web/app has image registry.test/busybox:2"],
  ],
  [
    "a wrong image of a container that ends",
    `${served()}\n${lineOf(rss).replace('"app"', '"fails"').replace("web-", "host-").replace(":1", "")}`,
    ["container_memory_rss of host/fails has image registry.test/busybox"],
  ],
  [
    "a container without its id",
    but(rss, (line) => line.replace(/name="\w+"/, 'name="app"')),
    ["container_memory_rss of web/app has no id"],
  ],
  [
    "a pod without eth0",
    but(ofPods[1]!, (line) => line.replace("eth0", "lo")),
    [`${ofPods[1]} of web: 0 series of eth0, not 1`],
  ],
])("%s is found", (_, text, expected) => {
  expect(problems(text)).toEqual(expected);
});

test("a line is parsed into family, labels, value and time, escaped quotes and commas included", () => {
  const found: Series[] = parseSeries(
    'a_b{x="1,\\"2\\"",y=""} 1.5e3 1700000000000\n# TYPE a_b gauge\nc{} 2',
  );
  expect(found).toEqual([
    { family: "a_b", labels: { x: '1,\\"2\\"', y: "" }, value: 1500, atMs: 1_700_000_000_000 },
    { family: "c", labels: {}, value: 2 },
  ]);
});

test("two runs have equal kinds of series unless a family, a label or a pod's interface differs", () => {
  const kinds = (text: string) => shapeOf(parseSeries(text));
  const other = served()
    .replaceAll("ens3", "eth1")
    .replaceAll("0a0a", "0b0b")
    .replaceAll(" 7 ", " 8 ");
  expect(kinds(other)).toEqual(kinds(served()));
  expect(kinds(served())).toHaveLength(18);
  for (const text of [
    but(rss, () => ""),
    but(rss, (line) => line.replace(",image", ",id")),
    but(ofPods[0]!, (line) => line.replace("eth0", "eth1")),
  ]) {
    expect(kinds(text)).not.toEqual(kinds(served()));
  }
});

test("a pod without network and a container without memory are found in the summary", () => {
  const container = { name: "app", cpu: {}, memory: {} };
  const summary = (web: Summary["pods"][0], host = web): Summary => ({
    pods: [
      { ...web, podRef: { name: "web-node1" } },
      { ...host, podRef: { name: "host-node1" } },
    ],
  });
  const podRef = { name: "" };
  const whole = { podRef, network: { name: "eth0", rxBytes: 0 }, containers: [container] };
  const onNode = { podRef, containers: [container] };
  expect(problemsInSummary(summary(whole, onNode), pods)).toEqual([]);
  expect(problemsInSummary(summary(onNode), pods)).toEqual(["the summary of web has no network"]);
  const { memory: _, ...partial } = container;
  expect(problemsInSummary(summary(whole, { podRef, containers: [partial] }), pods)).toEqual([
    "the summary of host/app lacks CPU or memory",
  ]);
  expect(problemsInSummary({ pods: [] }, pods)).toHaveLength(3);
});
