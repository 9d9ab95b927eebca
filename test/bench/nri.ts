// `bun run bench:nri [CONTAINERS]`: what NRI costs, each figure as a ratio in the same run. Creation and
// start of a container with no plugin, and with ten that are told of every event, to one without NRI; 1,000
// containers synchronised, to the encoding of their message. Five rounds, in each of which all sides take
// turns; a round's ratio is the median of its turns', and judged is the median of the rounds'. Exit 1 when
// one is over its bound. It needs a quiet machine: each call of a plugin waits for a processor twice.
import { toLong } from "../../src/base/int64.ts";
import { nriContainer, type ContainerFacts } from "../../src/nri/convert.ts";
import { PluginSet } from "../../src/nri/plugin_set.ts";
import { Changes, type World } from "../../src/nri/changes.ts";
import { synchronizeMessages } from "../../src/nri/synchronize.ts";
import { silentLog } from "../../src/base/log.ts";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { containerSpec } from "../../src/spec/oci.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { Plugins } from "../nri/plugins.ts";
import { RawPlugin } from "../nri/raw_plugin.ts";
import { until } from "../expect.ts";
import { specInput } from "../spec/facts.ts";

const rounds = 5;
/** Of each side in each round. */
const containersEach = Number(process.argv[2] ?? 40);
const synchronisedEach = 10;

type Row = { what: string; ms: number; ratios: number[]; bound: number };
type Side = { name: string; daemon: Daemon; pod: PodSandboxConfig; podId: string; ms: number[] };

async function side(name: string, config: Record<string, unknown>): Promise<Side> {
  const daemon = await startDaemon({ config });
  const pod = daemon.hostPodConfig();
  return { name, daemon, pod, podId: await daemon.runPod(pod), ms: [] };
}

function median(values: number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]!;
}

async function createdAndStarted({ daemon, pod, podId }: Side): Promise<number> {
  const begin = performance.now();
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  const ms = performance.now() - begin;
  await daemon.client.StopContainer({ container_id: id, timeout: toLong(0) });
  await daemon.client.RemoveContainer({ container_id: id });
  return ms;
}

async function containers(): Promise<Row[]> {
  using empty = new Plugins();
  using ten = new Plugins();
  const base = await side("without NRI", { "nri-support": false });
  const others = [await side("no plugin", empty.config()), await side("10 plugins", ten.config())];
  for (let i = 10; i < 20; i++) {
    await ten.start(`${i}-bench`, i % 2 === 0 ? "v061" : "v0125", { quiet: true });
  }
  const sides = [base, ...others];
  for (const one of sides) await createdAndStarted(one);
  const ratios = others.map((): number[] => []);
  for (let round = 0; round < rounds; round++) {
    for (const one of sides) one.ms = [];
    for (let count = 0; count < containersEach; count++) {
      // Each begins as often as the others.
      for (let turn = 0; turn < sides.length; turn++) {
        const one = sides[(count + turn) % sides.length]!;
        one.ms.push(await createdAndStarted(one));
      }
    }
    others.forEach(({ ms }, at) => ratios[at]!.push(median(ms.map((one, i) => one / base.ms[i]!))));
  }
  for (const { daemon } of sides) await daemon[Symbol.asyncDispose]();
  return others.map(({ name, ms }, at) => ({
    what: `create and start, ${name}`,
    ms: median(ms),
    ratios: ratios[at]!,
    bound: [1.02, 1.25][at]!,
  }));
}

function facts(index: number): ContainerFacts {
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
  const all = Array.from({ length: 1000 }, (_, index) => facts(index));
  using plugins = new Plugins();
  const log = silentLog();
  const world: World = {
    state: () => Promise.resolve({ pods: [], containers: all }),
    isLive: () => true,
    update: () => Promise.resolve(),
    evict: () => Promise.resolve(),
  };
  const config = {
    support: true,
    disableConnections: false,
    socketPath: plugins.socket,
    pluginPath: "/none",
    pluginConfigPath: "/none",
    registrationTimeoutMs: 5000,
    requestTimeoutMs: 2000,
    synchronizeTimeoutMs: 30_000,
    requiredPlugins: [],
  };
  await using set = new PluginSet({ config, log, world, changes: new Changes(world, log) });
  await set.start();
  const [ratios, last]: [number[], number[]] = [[], []];
  for (let round = 0; round < rounds; round++) {
    const [encodings, times]: [number[], number[]] = [[], []];
    for (let count = 0; count < synchronisedEach; count++) {
      const begin = performance.now();
      synchronizeMessages([], all.map(nriContainer));
      encodings.push(performance.now() - begin);
      times.push(await synchronisedOnce(set, plugins.socket));
    }
    ratios.push(median(times) / median(encodings));
    last.push(median(times));
  }
  return { what: "1,000 containers synchronised", ms: median(last), ratios, bound: 5 };
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

const rows = [await synchronised(), ...(await containers())];
for (const { what, ms, ratios, bound } of rows) {
  const each = ratios.map((ratio) => ratio.toFixed(3)).join(" ");
  const verdict = median(ratios) <= bound ? "ok" : "OVER";
  console.log(
    `${what}: ${ms.toFixed(1)} ms, ratio ${median(ratios).toFixed(3)} ≤ ${bound} ${verdict} (${each})`,
  );
}
process.exit(rows.every(({ ratios, bound }) => median(ratios) <= bound) ? 0 : 1);
