// Tests that plugins and clients can change only the memory limit of a container whose client, as a kubelet with
// cgroup v1, has set an equal swap limit.
import { afterAll, beforeAll, expect, test as anyTest } from "bun:test";
import { toLong } from "../../src/base/int64.ts";
import type { LinuxContainerResources, PodSandboxConfig } from "../../src/proto/types.ts";
import { Limits, mib } from "../cri/limits.ts";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { hasGo, Plugins } from "./plugins.ts";

const test = anyTest.skipIf(!hasGo);
const plugins = new Plugins();
let daemon: Daemon;
let limits: Limits;
let pod: PodSandboxConfig;
let podId: string;

beforeAll(async () => {
  if (!hasGo) return;
  daemon = await startDaemon({ config: plugins.config() });
  limits = new Limits(daemon);
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
}, 180_000);
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  plugins[Symbol.dispose]();
});

const noSwap = (count: number): LinuxContainerResources => ({
  memory_limit_in_bytes: mib(count),
  memory_swap_limit_in_bytes: mib(count),
});
const start = (name: string) =>
  daemon.run(podId, pod, ["sleep", "600"], {
    metadata: { name },
    linux: { resources: noSwap(64) },
  });
const memory = async (id: string) => Number((await limits.kernel(id)).memory) / 2 ** 20;
/** What a plugin changes: the memory limit alone. */
const limitOf = (count: number) => ({
  linux: { resources: { memory: { limit: { value: String(count << 20) } } } },
});

/** A kubelet's updates, of processors and of memory, succeed. */
async function expectUpdatable(id: string, now: number): Promise<void> {
  await limits.update(id, { cpu_shares: toLong(512) });
  expect(await memory(id)).toBe(now);
  await limits.update(id, noSwap(192));
  expect(await memory(id)).toBe(192);
  await limits.update(id, noSwap(32));
  expect(await memory(id)).toBe(32);
  await daemon.client.RemoveContainer({ container_id: id });
}

test("of a creation", async () => {
  await plugins.adjusting([["10", "v0125", { adjust: limitOf(128) }]], async (name) => {
    const id = await start(name);
    expect(await memory(id)).toBe(128);
    await expectUpdatable(id, 128);
  });
});

test("of a client's update", async () => {
  const name = "updated";
  const id = await start(name);
  const use = async () => {
    await limits.update(id, noSwap(80));
    expect(await memory(id)).toBe(160);
  };
  await plugins.adjusting([["10", "v0125", { update: [limitOf(160)] }]], use, name);
  await expectUpdatable(id, 160);
});

test("by the plugin itself, and by a client", async () => {
  const id = await start("own");
  const own = [{ containerId: id, ...limitOf(96) }];
  await plugins.adjusting([["10", "v0125", { own }]], async (name) => {
    const answer = () =>
      plugins.lines(`10-${name}`).find(({ event }) => event === "UpdateContainers");
    await until("it was answered", () => answer() !== undefined);
    expect(answer()).toMatchObject({ failed: [], error: "<nil>" });
    expect(await memory(id)).toBe(96);
  });
  await limits.update(id, { memory_limit_in_bytes: mib(112) });
  await limits.update(id, { memory_limit_in_bytes: toLong(-1) });
  await limits.update(id, { memory_limit_in_bytes: mib(120) });
  await expectUpdatable(id, 120);
});
