// Tests the synchronization of more pods and containers than one message holds.
import { afterAll, beforeAll, expect, test as anyTest } from "bun:test";
import { execFileSync } from "node:child_process";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { failure, until } from "../expect.ts";
import { type Daemon, executable, startDaemon } from "../harness.ts";
import { hasGo, Plugins } from "./plugins.ts";

const test = anyTest.skipIf(!hasGo);
const plugins = new Plugins();
let pod: PodSandboxConfig;
let podId: string;
const names = Array.from({ length: 24 }, (_, index) => `large-${index}`);
let daemon: Daemon;

beforeAll(async () => {
  if (!hasGo) return;
  daemon = await startDaemon({ config: plugins.config() });
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
  const annotations = { large: "x".repeat(220_000) };
  for (const name of names) {
    await daemon.create(podId, pod, ["true"], { metadata: { name }, annotations });
  }
}, 180_000);
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  plugins[Symbol.dispose]();
});

test("a plugin gets all of them in several messages", async () => {
  await plugins.start("10-new", "v0125");
  await until("it has answered", () => daemon.log.includes("in service plugin=10-new"));
  const lines = plugins.lines("10-new").filter(({ event }) => event === "Synchronize");
  expect(lines).toHaveLength(1); // the stub waits for the last
  expect(lines[0]).toMatchObject({ pods: 1 });
  expect((lines[0]!["containers"] as string[]).toSorted()).toEqual(names.toSorted());
  const env = { ...process.env, ISULAD_HOST: `unix://${daemon.socket}` };
  const json = execFileSync(executable, ["nri", "-o", "json"], { env, encoding: "utf8" });
  const { plugins: listed } = JSON.parse(json) as {
    plugins: { calls: { method: string; count: number }[] }[];
  };
  const calls = listed[0]!.calls.find(({ method }) => method === "Synchronize")!;
  expect(calls.count).toBeGreaterThan(1);
});

test("a plugin that accepts only one message is not admitted, with the reason in the log", async () => {
  await plugins.start("20-old", "v061", {}, { ready: false });
  await until("it is refused", () => /not admitted.*20-old.*accepts only one/.test(daemon.log));
});

test("the creation of a container that exceeds a message fails, and the plugin stays", async () => {
  const large = { larger: "x".repeat(1_000_000) };
  const config = daemon.hostPodConfig({ labels: large, annotations: large });
  const id = await daemon.runPod(config);
  const more = { labels: large, annotations: large };
  const command = Array.from({ length: 4 }, () => "x".repeat(100_000));
  const error = await failure(daemon.create(id, config, command, more));
  expect(error.message).toContain("10-new failed CreateContainer: CreateContainer: a message of");
  const name = "small";
  await daemon.create(id, config, ["true"], { metadata: { name } });
  await until("it hears", () => plugins.heardOf("10-new", name).includes("PostCreateContainer"));
});
