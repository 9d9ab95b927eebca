// Tests calls that wait while an NRI plugin is synchronized, and whose clients give up meanwhile.
import { afterAll, beforeAll, expect, test as anyTest } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { codeOf } from "../../src/base/errors.ts";
import { toLong } from "../../src/base/int64.ts";
import { runtime } from "../../src/proto/messages.js";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { hasGo, Plugins } from "./plugins.ts";

const test = anyTest.skipIf(!hasGo);
const { ContainerState } = runtime.v1;
const plugins = new Plugins();
let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;

beforeAll(async () => {
  if (!hasGo) return;
  daemon = await startDaemon({ config: plugins.config() });
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
}, 180_000);
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  plugins[Symbol.dispose]();
});

/** Starts a plugin that holds up all changes. Returns a function that ends this. */
async function startSlow(id: string): Promise<() => void> {
  const file = join(plugins.dir, `${id}-goes-on`);
  await plugins.start(id, "v0125", { until: { Synchronize: file } });
  return () => writeFileSync(file, "");
}

/** Waits until the daemon knows that the client of a call has given up. */
const isGivenUp = (call: string) =>
  until(`${call} has failed`, () => new RegExp(`call failed .*\\b${call}\\b`).test(daemon.log));

test("StartContainer whose kubelet has given up does not run beside the next attempt", async () => {
  const { client } = daemon;
  const attempt = (number: number) =>
    daemon.create(podId, pod, ["sleep", "600"], { metadata: { name: "app", attempt: number } });
  const first = await attempt(0);
  const goOn = await startSlow("10-slow");
  const started = client.StartContainer({ container_id: first }, { timeoutMs: 500 });
  expect(await started.catch(codeOf)).toBe("DEADLINE_EXCEEDED");
  await isGivenUp("StartContainer");
  goOn();
  const second = await attempt(1);
  await client.StartContainer({ container_id: second });
  expect((await daemon.status(first)).state).toBe(ContainerState.CONTAINER_CREATED);
  expect((await daemon.status(second)).state).toBe(ContainerState.CONTAINER_RUNNING);
});

test("plugins hear nothing of pods and updates whose clients have given up", async () => {
  const { client } = daemon;
  const id = await daemon.run(podId, pod, ["sleep", "600"], { metadata: { name: "updated" } });
  const goOn = await startSlow("20-slow");
  const config = daemon.hostPodConfig();
  const update = (cpu_shares: number) => ({
    container_id: id,
    linux: { cpu_shares: toLong(BigInt(cpu_shares)) },
  });
  const late = { timeoutMs: 500 };
  const calls = [
    client.RunPodSandbox({ config, runtime_handler: "" }, late),
    client.UpdatePodSandboxResources({ pod_sandbox_id: podId }, late),
    client.UpdateContainerResources(update(200), late),
  ];
  const codes = await Promise.all(calls.map((call) => call.then(() => "OK", codeOf)));
  expect(codes).toEqual(Array(3).fill("DEADLINE_EXCEEDED"));
  const names = ["RunPodSandbox", "UpdatePodSandboxResources", "UpdateContainerResources"];
  for (const name of names) await isGivenUp(name);
  goOn();
  await client.UpdateContainerResources(update(300)); // waits behind them
  const heard = plugins.lines("20-slow").map(({ event }) => event);
  expect(heard.filter((event) => /^(Run|Update)/.test(event))).toEqual(["UpdateContainer"]);
});
