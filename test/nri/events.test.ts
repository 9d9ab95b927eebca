// Tests the events that launched and external plugins get, with the oldest and the newest stub.
import { afterAll, beforeAll, describe, expect, test as anyTest } from "bun:test";
import { execFileSync } from "node:child_process";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { toLong } from "../../src/base/int64.ts";
import { failure, until } from "../expect.ts";
import { type Daemon, executable, startDaemon } from "../harness.ts";
import { freePort } from "../registry.ts";
import { hasGo, Plugins } from "./plugins.ts";

const test = anyTest.skipIf(!hasGo);
const plugins = new Plugins();
let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;

let metricsPort: number;
const ids = ["10-old", "20-new", "30-old-external", "40-new-external"];

beforeAll(async () => {
  if (!hasGo) return;
  plugins.install("10-old", "v061");
  plugins.install("20-new", "v0125");
  const some = { events: ["RunPodSandbox", "StopContainer"] };
  plugins.install("25-some", "v061", some, "some.conf");
  metricsPort = await freePort();
  daemon = await startDaemon({ config: plugins.config({ "metrics-port": metricsPort }) });
  pod = daemon.podConfig({ metadata: { name: "first" }, labels: { a: "b" } });
  podId = await daemon.runPod(pod);
  await daemon.run(podId, pod, ["sleep", "600"], { metadata: { name: "before" } });
  await plugins.start("30-old-external", "v061");
  await plugins.start("40-new-external", "v0125");
}, 180_000);
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  plugins[Symbol.dispose]();
});

const containerEvents = [
  "CreateContainer",
  "PostCreateContainer",
  "StartContainer",
  "PostStartContainer",
  "StopContainer",
  "RemoveContainer",
];

test("a new plugin is synchronized with existing pods and containers", () => {
  for (const id of ids.slice(2)) {
    const line = plugins.lines(id).find(({ event }) => event === "Synchronize");
    expect(line).toMatchObject({ pods: 1, containers: ["before"] });
  }
});

test("Configure names the runtime, its version, and gives a launched plugin its file", () => {
  const [line] = plugins.lines("20-new");
  expect(line).toMatchObject({ event: "Configure", runtime: "isulad-ts" });
});

describe.each(ids)("%s", (id) => {
  test("gets each event of a pod once, with the pod's fields", async () => {
    const config = daemon.podConfig({ metadata: { name: `pod-of-${id}` } });
    const sandbox = await daemon.runPod(config);
    await daemon.client.StopPodSandbox({ pod_sandbox_id: sandbox });
    await daemon.removePod(sandbox);
    const lines = plugins.lines(id).filter(({ pod }) => pod?.id === sandbox);
    expect(lines.map(({ event }) => event)).toEqual([
      "RunPodSandbox",
      "StopPodSandbox",
      "RemovePodSandbox",
    ]);
    const { name, uid, namespace } = config.metadata!;
    expect(lines[0]!.pod).toMatchObject({ name, uid, namespace });
    expect(lines[0]!.pod!.linux).toMatchObject({
      namespaces: expect.arrayContaining([
        { type: "network", path: expect.stringContaining("/netns/") },
      ]),
    });
    expect(lines[2]!.pod!.linux).not.toHaveProperty("namespaces");
    if (!id.includes("new")) return;
    expect(lines[0]!.pod!.ips?.[0]).toStartWith(daemon.subnet);
    expect(lines[2]!.pod!.ips).toEqual(lines[0]!.pod!.ips);
  });

  test("gets a container's events in order, and StopContainer when it exits by itself", async () => {
    for (const [name, command] of [
      ["stopped", ["sleep", "600"]],
      ["failed", ["sh", "-c", "exit 3"]],
    ] as const) {
      const more = { metadata: { name: `${name}-${id}` } };
      const container = await daemon.run(podId, pod, [...command], more);
      if (name === "stopped") {
        await daemon.client.StopContainer({ container_id: container, timeout: toLong(0) });
      } else await daemon.exited(container);
      await daemon.client.RemoveContainer({ container_id: container });
      expect(plugins.heardOf(id, `${name}-${id}`)).toEqual(containerEvents);
      const lines = plugins.lines(id).filter((line) => line.container?.id === container);
      const of = (event: string) => lines.find((line) => line.event === event)!.container!;
      expect(of("CreateContainer")).toMatchObject({
        args: command,
        state: "CONTAINER_CREATED",
        env: expect.arrayContaining([expect.stringMatching(/^PATH=/)]),
      });
      if (name === "stopped") {
        expect(of("PostStartContainer")).toMatchObject({ state: "CONTAINER_RUNNING" });
        expect(of("PostStartContainer").pid).toBeGreaterThan(1);
      }
      expect(of("StopContainer")).toMatchObject({ state: "CONTAINER_STOPPED" });
      if (id.includes("new") && name === "failed") {
        expect(of("StopContainer")).toMatchObject({ exitCode: 3, statusReason: "Error" });
        expect(of("StopContainer")["user"]).toBeDefined();
      }
    }
  });

  test("gets updates before and after they are applied", async () => {
    const name = `updated-${id}`;
    const container = await daemon.run(podId, pod, ["sleep", "600"], { metadata: { name } });
    const linux = { memory_limit_in_bytes: toLong(64 << 20) };
    const annotations = { "resize.example": "yes" };
    await daemon.client.UpdateContainerResources({ container_id: container, linux, annotations });
    const before = plugins.lines(id).findLast(({ event }) => event === "UpdateContainer");
    expect((await daemon.status(container)).annotations).toEqual({});
    expect(before!["resources"]).toMatchObject({ memory: { limit: { value: `${64 << 20}` } } });
    const after = () =>
      plugins
        .lines(id)
        .find(
          ({ event, container }) => event === "PostUpdateContainer" && container?.name === name,
        );
    await until("it is told", () => after() !== undefined);
    expect(after()!.container).toMatchObject({
      name,
      annotations,
      linux: { resources: { memory: { limit: { value: `${64 << 20}` } } } },
    });
    await daemon.client.RemoveContainer({ container_id: container });
  });
});

test("a plugin gets only the events that it subscribes to", async () => {
  const config = daemon.hostPodConfig();
  const sandbox = await daemon.runPod(config);
  const name = "for-some";
  await daemon.run(sandbox, config, ["sleep", "600"], { metadata: { name } });
  await daemon.removePod(sandbox);
  expect(plugins.heardOf("25-some", name)).toEqual(["StopContainer"]);
  const heard = new Set(plugins.lines("25-some").map(({ event }) => event));
  expect([...heard]).toEqual(["Configure", "Synchronize", "RunPodSandbox", "StopContainer"]);
});

test("isulad-ts nri and the metrics list plugins with their calls", async () => {
  const ask = (...more: string[]) => {
    const env = { ...process.env, ISULAD_HOST: `unix://${daemon.socket}` };
    return execFileSync(executable, ["nri", ...more], { env, encoding: "utf8" });
  };
  const rows = ask().trim().split("\n").slice(1);
  expect(rows.map((row) => row.split(/\s+/).slice(0, 2))).toEqual([
    ["10-old", "launched"],
    ["20-new", "launched"],
    ["25-some", "launched"],
    ["30-old-external", "external"],
    ["40-new-external", "external"],
  ]);
  const { plugins: listed } = JSON.parse(ask("-o", "json")) as {
    plugins: {
      id: string;
      version: string;
      calls: { method: string; count: number; failed: number }[];
      lastError: string;
    }[];
  };
  expect(listed[1]).toMatchObject({ id: "20-new", version: "v0.12.5" });
  const created = listed[1]!.calls.find(({ method }) => method === "CreateContainer")!.count;
  expect(created).toBeGreaterThan(1);
  const text = await (await fetch(`http://127.0.0.1:${metricsPort}/metrics`)).text();
  expect(text).toContain("isulad_nri_plugins 5");
  const name = "isulad_nri_call_duration_seconds_count";
  const line = `${name}{plugin="20-new",method="CreateContainer"} ${created}`;
  expect(text).toContain(line);
  // That an older plugin does not know a method is no failure, of which there is an alert.
  const [old] = listed;
  expect(old!.calls.map(({ method }) => method)).toContain("StateChange");
  expect(old!.calls.filter(({ failed }) => failed > 0)).toEqual([]);
  expect(old!.lastError).toBe("");
  const failures = text
    .split("\n")
    .filter((one) => one.startsWith("isulad_nri_call_failures_total"));
  expect(failures.filter((one) => one.includes('"10-old"') && !one.endsWith(" 0"))).toEqual([]);
});

test("launched and external validators are called for a creation", async () => {
  const validators = () =>
    ids.filter((id) =>
      plugins.lines(id).some(({ event }) => event === "ValidateContainerAdjustment"),
    );
  const id = await daemon.create(podId, pod, ["true"]);
  expect(validators()).toEqual(["20-new", "40-new-external"]);
  await daemon.client.RemoveContainer({ container_id: id });
});

test("only the newest stub gets UpdatePodSandbox", async () => {
  const config = daemon.hostPodConfig();
  const sandbox = await daemon.runPod(config);
  await daemon.client.UpdatePodSandboxResources({
    pod_sandbox_id: sandbox,
    resources: { memory_limit_in_bytes: toLong(1 << 30) },
  });
  const heard = (id: string) =>
    plugins
      .lines(id)
      .filter(({ pod }) => pod?.id === sandbox)
      .map(({ event }) => event);
  for (const id of ids) {
    const updates = id.includes("new") ? ["UpdatePodSandbox", "PostUpdatePodSandbox"] : [];
    expect(heard(id)).toEqual(["RunPodSandbox", ...updates]);
  }
  await daemon.removePod(sandbox);
});

test("a pod's containers are stopped and removed for plugins before the pod", async () => {
  const config = daemon.hostPodConfig();
  const sandbox = await daemon.runPod(config);
  const name = "taken-along";
  await daemon.run(sandbox, config, ["sleep", "600"], { metadata: { name } });
  await daemon.removePod(sandbox);
  const order = plugins
    .lines("20-new")
    .filter((line) => line.pod?.id === sandbox || line.container?.name === name)
    .map(({ event }) => event);
  expect(order.slice(-4)).toEqual([
    "StopContainer",
    "StopPodSandbox",
    "RemoveContainer",
    "RemovePodSandbox",
  ]);
});

test("launched plugins get Shutdown and exit with the daemon; external ones reconnect", async () => {
  const [launched, stopped] = ["20-new", "10-old"].map((id) => plugins.lines(id)[0]!.pid);
  process.kill(stopped!, "SIGSTOP"); // deaf to Shutdown and SIGTERM
  await daemon.stop();
  expect(plugins.lines("20-new").some(({ event }) => event === "Shutdown")).toBe(true);
  await until("both have ended", () => ![launched!, stopped!].some(isAlive));
  expect(plugins.lines("40-new-external").some(({ event }) => event === "Shutdown")).toBe(false);
  await daemon.start();
  await plugins.start("40-new-external", "v0125");
  const line = plugins.lines("40-new-external").findLast(({ event }) => event === "Synchronize");
  expect(line).toMatchObject({ containers: ["before"] });
});

test("launched plugins exit when the daemon is killed", async () => {
  const launched = plugins.lines("20-new").findLast(({ event }) => event === "Configure")!.pid;
  process.kill(launched, 0);
  await daemon.stop("SIGKILL");
  await until("the plugin has ended", () => !isAlive(launched));
  await daemon.start();
  await failure(daemon.client.PodSandboxStatus({ pod_sandbox_id: "none" }));
});

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
