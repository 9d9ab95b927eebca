// Plugins that hang, crash, refuse, or ask for what cannot be: what it costs, and whom.
import { afterAll, beforeAll, expect, test as anyTest } from "bun:test";
import { createConnection } from "node:net";
import { join } from "node:path";
import { writeFileSync } from "node:fs";
import { toLong } from "../../src/base/int64.ts";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { failure, until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { hasGo, Plugins } from "./plugins.ts";

const test = anyTest.skipIf(!hasGo);
const plugins = new Plugins();
let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;

beforeAll(async () => {
  if (!hasGo) return;
  plugins.install("10-witness", "v0125");
  writeFileSync(join(plugins.dir, "plugins/no-plugin"), "#!/bin/sh\n", { mode: 0o755 });
  writeFileSync(join(plugins.dir, "plugins/20-not-executable"), "x", { mode: 0o644 });
  daemon = await startDaemon({ config: plugins.config({ "plugin-request-timeout": "1s" }) });
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
}, 180_000);
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  plugins[Symbol.dispose]();
});

const events = [
  "CreateContainer",
  "PostCreateContainer",
  "StartContainer",
  "PostStartContainer",
  "UpdateContainer",
  "PostUpdateContainer",
  "StopContainer",
  "RemoveContainer",
];

let serial = 0;

/** A container's whole life, during which all events happen. */
async function life(): Promise<string> {
  const name = `life-${++serial}`;
  const id = await daemon.run(podId, pod, ["sleep", "600"], { metadata: { name } });
  const linux = { cpu_shares: toLong(300) };
  await daemon.client.UpdateContainerResources({ container_id: id, linux });
  await daemon.client.StopContainer({ container_id: id, timeout: toLong(0) });
  await daemon.client.RemoveContainer({ container_id: id });
  return name;
}

test("files that are no plugins are told of and left out", () => {
  expect(daemon.log).toMatch(/no-plugin.*two digits/);
  expect(daemon.log).toMatch(/20-not-executable.*not executable/);
});

test.each(events)("a plugin that ends during %s harms nobody", async (event) => {
  const id = `50-crash-${event}`;
  await plugins.start(id, "v0125", { exit: [event] });
  const name = await life();
  expect(plugins.heardOf("10-witness", name)).toContain("RemoveContainer");
  expect(daemon.log).toMatch(new RegExp(`plugin is gone.*${id}`));
});

test.each(events)("a plugin that hangs in %s costs its deadline, once", async (event) => {
  const id = `50-hang-${event}`;
  await plugins.start(id, "v061", { hang: [event] });
  const name = await life();
  expect(plugins.heardOf("10-witness", name)).toContain("RemoveContainer");
  expect(daemon.log).toContain(`NRI plugin ${id} failed`);
  expect(daemon.log).toContain("no answer within 1000 ms");
  const begin = performance.now();
  await life();
  expect(performance.now() - begin).toBeLessThan(10_000);
});

test.each(["CreateContainer", "StartContainer"])(
  "an error in %s fails the call, with the plugin's words, and the retry works",
  async (event) => {
    const id = `50-fail-${event}`;
    const child = await plugins.start(id, "v0125", { fail: [event] });
    const error = await failure(life());
    expect(error.message).toContain(`NRI plugin ${id} failed ${event}`);
    expect(error.message).toContain(`told to fail ${event}`);
    await plugins.end(child);
    await life();
    const { containers } = await daemon.client.ListContainers({});
    for (const { id } of containers) await daemon.client.RemoveContainer({ container_id: id! });
  },
);

test("a failure policy says what a late answer costs the request, and the plugin", async () => {
  const hang = ["StartContainer"];
  const failing = await plugins.start("50-strict", "v0125", {
    hang,
    policy: { failRequest: true },
  });
  expect((await failure(life())).message).toContain("50-strict failed StartContainer");
  await plugins.end(failing);
  const kept = await plugins.start("50-kept", "v0125", { hang, policy: { keepConnected: true } });
  const name = await life();
  expect(plugins.heardOf("50-kept", name)).toContain("RemoveContainer");
  await plugins.end(kept);
  const { containers } = await daemon.client.ListContainers({});
  for (const { id } of containers) await daemon.client.RemoveContainer({ container_id: id! });
});

test("errors in what has happened hold nothing up", async () => {
  const after = events.filter((event) => /^(Post|Stop|Remove)/.test(event));
  const child = await plugins.start("50-after", "v061", { fail: after });
  await life();
  expect(daemon.log).toContain("50-after failed StopContainer");
  await plugins.end(child);
});

test("a pod that a plugin refuses was never there", async () => {
  const child = await plugins.start("50-no-pods", "v0125", { fail: ["RunPodSandbox"] });
  const config = daemon.podConfig();
  const before = daemon.snapshot();
  const error = await failure(daemon.runPod(config));
  expect(error.message).toContain("told to fail RunPodSandbox");
  expect(await daemon.leaksSince(before)).toEqual([]);
  const heard = plugins
    .lines("10-witness")
    .filter(({ pod }) => pod?.name === config.metadata!.name)
    .map(({ event }) => event);
  expect(heard).toEqual(["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"]);
  await plugins.end(child);
  await daemon.removePod(await daemon.runPod(config));
});

test("nobody sees a pod or container before plugins have agreed", async () => {
  const slow = { sleepMs: { RunPodSandbox: 700, CreateContainer: 700 } };
  const child = await plugins.start("50-slow", "v0125", slow);
  const config = daemon.hostPodConfig();
  const coming = daemon.runPod(config);
  await until("it was asked", () =>
    plugins.lines("50-slow").some(({ event }) => event === "RunPodSandbox"),
  );
  const asked = plugins.lines("50-slow").find(({ event }) => event === "RunPodSandbox")!;
  const id = asked.pod!.id;
  const { items } = await daemon.client.ListPodSandbox({});
  expect(items.map((item) => item.id)).not.toContain(id);
  expect(await failure(daemon.create(id, config, ["true"]))).toMatchObject({ code: "NOT_FOUND" });
  expect(await coming).toBe(id);
  const container = daemon.create(id, config, ["true"]);
  await until("it was asked", () =>
    plugins.lines("50-slow").some(({ event }) => event === "CreateContainer"),
  );
  const { containers } = await daemon.client.ListContainers({ filter: { pod_sandbox_id: id } });
  expect(containers).toEqual([]);
  await container;
  await daemon.removePod(id);
  await plugins.end(child);
});

test("what is made while a plugin is synchronized waits, and the plugin hears of it", async () => {
  const slow = { sleepMs: { Synchronize: 2500 } };
  const child = await plugins.start("50-sync", "v0125", slow);
  const name = `life-${serial + 1}`;
  await life();
  expect(plugins.heardOf("50-sync", name)[0]).toBe("CreateContainer");
  await plugins.end(child);
});

test.each<[string, object, string]>([
  ["a mount without destination", { mounts: [{ source: "/x" }] }, "mounts.destination"],
  [
    "a negative limit",
    { linux: { resources: { memory: { limit: { value: "-9" } } } } },
    "limit: -9",
  ],
  ["an env name with =", { env: [{ key: "A=B", value: "c" }] }, "no variable's name"],
])("%s closes the plugin, and the container is made without it", async (_, adjust, why) => {
  const id = `50-bad-${why.replace(/\W+/g, "-")}`;
  await plugins.start(id, "v061", { adjust });
  await life();
  expect(daemon.log).toMatch(new RegExp(`plugin is gone.*${id}.*${why}`));
});

test.each([
  ["5-x", "index", "not two digits"],
  ["50-bad name", "name", "not made of"],
])("%s: a bad %s is refused", async (id, _, why) => {
  await plugins.start(id, "v061", {}, { ready: false });
  await until("it is refused", () => daemon.log.includes(why));
  await life();
});

test("garbage on the socket ends that connection alone", async () => {
  const socket = createConnection(plugins.socket);
  const ended = new Promise((resolve) => socket.once("close", resolve));
  socket.resume();
  socket.on("error", () => {});
  socket.write("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  await ended;
  expect(daemon.log).toMatch(/not admitted.*a frame for connection 1195725856/);
  await life();
});

test("one that never registers is closed at its deadline", async () => {
  const socket = createConnection(plugins.socket);
  const ended = new Promise((resolve) => socket.once("close", resolve));
  socket.resume();
  await ended;
  expect(daemon.log).toContain("has not registered within 5000 ms");
}, 20_000);

test("a launched plugin that is stopped is killed, and comes back", async () => {
  const stopped = plugins.lines("10-witness").findLast(({ event }) => event === "Configure")!.pid;
  const told = plugins.lines("10-witness").length;
  process.kill(stopped, "SIGSTOP");
  await life();
  const back = () =>
    plugins
      .lines("10-witness")
      .slice(told)
      .some(({ event, pid }) => event === "Synchronize" && pid !== stopped);
  await until("another one is there", back);
  expect(() => process.kill(stopped, 0)).toThrow();
});

test("a launched plugin that dies comes back, with what there is", async () => {
  const first = plugins.lines("10-witness").findLast(({ event }) => event === "Configure")!.pid;
  process.kill(first, "SIGKILL");
  const started = () => plugins.lines("10-witness").filter(({ event }) => event === "Synchronize");
  const count = started().length;
  await until("it is back", () => started().length > count);
  expect(daemon.log).toMatch(/a plugin has ended; it is started again/);
  const name = await life();
  expect(plugins.heardOf("10-witness", name)).toContain("RemoveContainer");
});
