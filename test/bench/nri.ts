// What NRI costs: creation and start of a container without it, with no plugin, and with ten that are
// told of every event; and 1,000 containers synchronised. Ratios of medians in one run count, nothing
// else does. `bun test/bench/nri.ts [CONTAINERS]`
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

const rounds = Number(process.argv[2] ?? 40);

type Side = { name: string; daemon: Daemon; pod: PodSandboxConfig; podId: string; ms: number[] };

async function side(name: string, config: Record<string, unknown>): Promise<Side> {
  const daemon = await startDaemon({ config });
  const pod = daemon.hostPodConfig();
  return { name, daemon, pod, podId: await daemon.runPod(pod), ms: [] };
}

function median(values: number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]!;
}

async function containers(): Promise<void> {
  using empty = new Plugins();
  using ten = new Plugins();
  const sides = [
    await side("without NRI", { "nri-support": false }),
    await side("no plugin", empty.config()),
    await side("10 plugins", ten.config()),
  ];
  for (let i = 10; i < 20; i++)
    await ten.start(`${i}-bench`, i % 2 === 0 ? "v061" : "v0125", { quiet: true });
  for (let round = 0; round < rounds; round++) {
    // Each begins a round as often as the others.
    for (let turn = 0; turn < sides.length; turn++) {
      const { daemon, pod, podId, ms } = sides[(round + turn) % sides.length]!;
      const begin = performance.now();
      const id = await daemon.run(podId, pod, ["sleep", "600"]);
      ms.push(performance.now() - begin);
      await daemon.client.StopContainer({ container_id: id, timeout: toLong(0) });
      await daemon.client.RemoveContainer({ container_id: id });
    }
  }
  const base = median(sides[0]!.ms);
  for (const { name, ms } of sides) {
    const ratio = (median(ms) / base).toFixed(3);
    console.log(`create and start, ${name}: ${median(ms).toFixed(1)} ms, ratio ${ratio}`);
  }
  for (const { daemon } of sides) await daemon[Symbol.asyncDispose]();
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

async function synchronise(): Promise<void> {
  const all = Array.from({ length: 1000 }, (_, index) => facts(index));
  const encode = () => synchronizeMessages([], all.map(nriContainer));
  const encodings = Array.from({ length: 20 }, () => {
    const begin = performance.now();
    encode();
    return performance.now() - begin;
  });
  using plugins = new Plugins();
  const log = silentLog();
  const world: World = {
    state: () => Promise.resolve({ pods: [], containers: all }),
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
  const times: number[] = [];
  for (let i = 10; i < 30; i++) {
    using plugin = new RawPlugin(plugins.socket, {});
    await plugin.register(String(i), "bench");
    const begin = performance.now();
    await until("it is there", () => set.plugins.length === 1);
    times.push(performance.now() - begin);
    plugin.socket.destroy();
    await until("it is gone", () => set.plugins.length === 0);
  }
  const ratio = (median(times) / median(encodings)).toFixed(2);
  console.log(
    `1,000 containers: ${median(times).toFixed(1)} ms, encoding ${median(encodings).toFixed(1)} ms, ratio ${ratio}`,
  );
}

await synchronise();
await containers();
process.exit(0);
