// Measures the cost of NRI, each figure as a ratio in the same run: `bun run bench:nri [PAIRS]`. Compares
// creation and start of a container without plugins, and with ten that subscribe to every event, with no NRI,
// and Synchronize of 1,000 containers with the encoding of its message. Exits with 1 when a figure exceeds its
// bound. Needs a quiet machine: each call of a plugin waits for a processor twice.
//
// Decision: two daemons take turns, and every second pair is reversed, so that each is as often first as
// second, and as often after itself; the median of all pairs' ratios is judged. Two processes of one program
// differ as long as they run (memory layout, compiled code), so each round starts new ones, also in turns.
// The same without NRI on either side shows the remaining error: its figure should be 1.
import { toLong } from "../../src/base/int64.ts";
import { nriContainer, type ContainerSnapshot } from "../../src/nri/convert.ts";
import type { PluginSet } from "../../src/nri/plugin_set.ts";
import { synchronizeMessages } from "../../src/nri/synchronize.ts";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { containerSpec } from "../../src/spec/oci.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { pluginSet } from "../nri/host.ts";
import { Plugins } from "../nri/plugins.ts";
import { RawPlugin } from "../nri/raw_plugin.ts";
import { until } from "../expect.ts";
import { specInput } from "../spec/inputs.ts";
import { median } from "../median.ts";

const rounds = 5;
/** Pairs per round. */
const pairsEach = Number(process.argv[2] ?? 60);
const synchronisedEach = 10;

/** ratios: of all pairs; of: the median of each round. */
type Row = { what: string; ms: number; ratios: number[]; of: number[]; bound?: number };
type Side = { daemon: Daemon; pod: PodSandboxConfig; podId: string };

/** The 95 % confidence interval of the median, by ranks. */
function interval(values: number[]): [number, number] {
  const sorted = values.toSorted((a, b) => a - b);
  const half = 0.98 * Math.sqrt(values.length);
  const at = (rank: number) => sorted[Math.min(Math.max(rank, 0), values.length - 1)]!;
  const middle = values.length / 2;
  return [at(Math.floor(middle - half)), at(Math.ceil(middle + half) - 1)];
}

async function side(config: Record<string, unknown>): Promise<Side> {
  const daemon = await startDaemon({ config });
  const pod = daemon.hostPodConfig();
  return { daemon, pod, podId: await daemon.runPod(pod) };
}

/** In ms. */
async function createdAndStarted({ daemon, pod, podId }: Side): Promise<number> {
  const begin = performance.now();
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  const ms = performance.now() - begin;
  await daemon.client.StopContainer({ container_id: id, timeout: toLong(0) });
  await daemon.client.RemoveContainer({ container_id: id });
  return ms;
}

/** Runs first and second in turns; every second pair starts with the second. */
async function pairs(first: Side, second: Side): Promise<{ first: number; second: number }[]> {
  const pairs: { first: number; second: number }[] = [];
  for (let warm = 0; warm < 3; warm++) {
    for (const one of [first, second]) await createdAndStarted(one);
  }
  for (let count = 0; count < pairsEach; count++) {
    const times = new Map<Side, number>();
    const order = count % 2 === 0 ? [first, second] : [second, first];
    for (const one of order) times.set(one, await createdAndStarted(one));
    pairs.push({ first: times.get(first)!, second: times.get(second)! });
  }
  return pairs;
}

/** Compares a daemon with NRI and that many plugins to one without NRI. */
async function containers(
  what: string,
  { support, count, bound }: { support: boolean; count: number; bound?: number },
): Promise<Row> {
  const row: Row = { what, ms: 0, ratios: [], of: [], ...(bound === undefined ? {} : { bound }) };
  const times: number[] = [];
  for (let round = 0; round < rounds; round++) {
    using plugins = new Plugins();
    const configs = [{ "nri-support": false }, { ...plugins.config(), "nri-support": support }];
    const sides = new Map<object, Side>();
    for (const config of round % 2 === 0 ? configs : configs.toReversed()) {
      sides.set(config, await side(config));
    }
    for (let index = 10; index < 10 + count; index++) {
      await plugins.start(`${index}-bench`, index % 2 === 0 ? "v061" : "v0125", { quiet: true });
    }
    const [without, other] = configs.map((config) => sides.get(config)!);
    const done = await pairs(without!, other!);
    for (const { daemon } of sides.values()) await daemon[Symbol.asyncDispose]();
    const ratios = done.map(({ first, second }) => second / first);
    row.ratios.push(...ratios);
    row.of.push(median(ratios));
    times.push(...done.map(({ second }) => second));
  }
  return { ...row, ms: median(times) };
}

function snapshot(index: number): ContainerSnapshot {
  return {
    id: `c${index}`.padEnd(64, "0"),
    sandboxId: "p".repeat(64),
    config: { metadata: { name: `c${index}` }, labels: { app: "bench" } },
    spec: containerSpec(specInput({})),
    image: { id: "sha256:abc", name: "busybox", ref: "busybox@sha256:def" },
    state: "running",
    pid: 1000 + index,
    createdAtNs: 1_795_287_153_540_051_757n,
    startedAtNs: 1_795_287_153_640_051_757n,
    finishedAtNs: 0n,
    exitCode: 0,
    reason: "",
    message: "",
  };
}

async function synchronised(): Promise<Row> {
  const all = Array.from({ length: 1000 }, (_, index) => snapshot(index));
  using plugins = new Plugins();
  await using set = pluginSet(plugins.socket, () => Promise.resolve({ pods: [], containers: all }));
  await set.start();
  const row: Row = { what: "1,000 containers synchronised", ms: 0, ratios: [], of: [], bound: 5 };
  const times: number[] = [];
  for (let round = 0; round < rounds; round++) {
    const ratios: number[] = [];
    for (let count = 0; count < synchronisedEach; count++) {
      const begin = performance.now();
      synchronizeMessages([], all.map(nriContainer));
      const encoding = performance.now() - begin;
      const ms = await synchronisedOnce(set, plugins.socket);
      ratios.push(ms / encoding);
      times.push(ms);
    }
    row.ratios.push(...ratios);
    row.of.push(median(ratios));
  }
  return { ...row, ms: median(times) };
}

async function synchronisedOnce(set: PluginSet, socket: string): Promise<number> {
  using plugin = new RawPlugin(socket, {});
  await plugin.register("10", "bench");
  const begin = performance.now();
  await until("it is there", () => set.plugins.length === 1);
  const ms = performance.now() - begin;
  plugin.socket.destroy();
  await until("it is gone", () => set.plugins.length === 0);
  return ms;
}

function isOver({ ratios, bound = Infinity }: Row): boolean {
  return median(ratios) > bound;
}

function show(row: Row): void {
  const { what, ms, ratios, of, bound } = row;
  const [low, high] = interval(ratios);
  const verdict = bound === undefined ? "not judged" : `≤ ${bound} ${isOver(row) ? "OVER" : "ok"}`;
  const figure = `${median(ratios).toFixed(3)} (${low.toFixed(3)}–${high.toFixed(3)})`;
  const each = of.map((one) => one.toFixed(3)).join(" ");
  console.log(`${what}: ${ms.toFixed(1)} ms, ratio ${figure} ${verdict}; rounds ${each}`);
}

const create = "create and start";
const rows = [
  () => synchronised(),
  () => containers(`${create}, without NRI on either side`, { support: false, count: 0 }),
  () => containers(`${create}, no plugin`, { support: true, count: 0, bound: 1.02 }),
  () => containers(`${create}, 10 plugins`, { support: true, count: 10, bound: 1.25 }),
];
let over = 0;
for (const measure of rows) {
  const row = await measure();
  show(row);
  if (isOver(row)) over++;
}
process.exit(over === 0 ? 0 : 1);
