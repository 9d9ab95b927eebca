// Tests plugins that hang, crash, reject requests or send invalid answers.
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
/** A silent connection, opened at the start so that its deadline passes during other tests. */
let silentEnded: Promise<void>;

beforeAll(async () => {
  if (!hasGo) return;
  plugins.install("10-witness", "v0125");
  writeFileSync(join(plugins.dir, "plugins/no-plugin"), "#!/bin/sh\n", { mode: 0o755 });
  writeFileSync(join(plugins.dir, "plugins/20-not-executable"), "x", { mode: 0o644 });
  const keys = {
    "plugin-registration-timeout": "15s",
    "plugin-request-timeout": "10s",
  };
  daemon = await startDaemon({ config: plugins.config(keys) });
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
  const silent = createConnection(plugins.socket);
  silentEnded = new Promise((resolve) => silent.once("close", () => resolve()));
  silent.resume();
}, 180_000);
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  plugins[Symbol.dispose]();
});

const containerEvents = [
  "CreateContainer",
  "ValidateContainerAdjustment",
  "PostCreateContainer",
  "StartContainer",
  "PostStartContainer",
  "UpdateContainer",
  "PostUpdateContainer",
  "StopContainer",
  "RemoveContainer",
];
const podEvents = [
  "RunPodSandbox",
  "UpdatePodSandbox",
  "PostUpdatePodSandbox",
  "StopPodSandbox",
  "RemovePodSandbox",
];
/** Events that the oldest stub does not know. */
const isNew = (event: string) => /UpdatePod|Validate/.test(event);

let serial = 0;

/** The limits that plugins run into which are told to hang. */
const short = { "plugin-request-timeout": "2s", "plugin-synchronize-timeout": "4s" };

/** Runs a container from creation to removal, so that all of its events happen. */
async function life(pod = podId): Promise<string> {
  const name = `life-${++serial}`;
  const config = daemon.hostPodConfig();
  const id = await daemon.run(pod, config, ["sleep", "600"], { metadata: { name } });
  const linux = { cpu_shares: toLong(300) };
  await daemon.client.UpdateContainerResources({ container_id: id, linux });
  await daemon.client.StopContainer({ container_id: id, timeout: toLong(0) });
  await daemon.client.RemoveContainer({ container_id: id });
  return name;
}

/** Runs a pod with a container in it to their removal. Returns both names. */
async function podLife(): Promise<[pod: string, container: string]> {
  const config = daemon.hostPodConfig();
  const id = await daemon.runPod(config);
  await daemon.client.UpdatePodSandboxResources({
    pod_sandbox_id: id,
    resources: { memory_limit_in_bytes: toLong(1 << 30) },
  });
  const container = await life(id);
  await daemon.removePod(id);
  return [config.metadata!.name!, container];
}

/** Returns the witness's events of both, without validations. */
function witnessed([pod, container]: [string, string]): string[] {
  const ofPod = plugins.lines("10-witness").filter((line) => line.pod?.name === pod);
  return [...ofPod.map(({ event }) => event), ...plugins.heardOf("10-witness", container)];
}

test("files that are not plugins are logged and skipped", () => {
  expect(daemon.log).toMatch(/no-plugin.*two digits/);
  expect(daemon.log).toMatch(/20-not-executable.*not executable/);
});

/** Starts one plugin for each event, which exits or hangs in it. */
async function inEach(kind: "exit" | "hang"): Promise<{ id: string; event: string }[]> {
  const all = [...containerEvents, ...podEvents].map((event) => ({
    id: `50-${kind}-${event}`,
    event,
  }));
  const started = all.map(({ id, event }) =>
    plugins.start(id, kind === "hang" && !isNew(event) ? "v061" : "v0125", { [kind]: [event] }),
  );
  await Promise.all(started);
  return all;
}

test("plugins that exit during an event do not affect requests or other plugins", async () => {
  const told = witnessed(await podLife());
  const all = await inEach("exit");
  expect(witnessed(await podLife())).toEqual(told);
  for (const { id } of all)
    expect(daemon.log).toMatch(new RegExp(`NRI plugin out of service.*${id}`));
  for (const event of [...containerEvents, ...podEvents]) {
    const heard = plugins.lines("10-witness").map((line) => line.event);
    expect(heard).toContain(event);
  }
});

test("plugins that hang delay requests by one deadline, once", async () => {
  const all = await inEach("hang");
  const told = witnessed(await daemon.configured(short, podLife));
  for (const { id, event } of all) {
    const why = `NRI plugin ${id} failed ${event}: .*no answer within 2000 ms`;
    expect(daemon.log).toMatch(new RegExp(why));
  }
  const asked = daemon.log.split("no answer within").length;
  expect(witnessed(await podLife())).toEqual(told);
  expect(daemon.log.split("no answer within")).toHaveLength(asked);
});

test.each(["Configure", "Synchronize"])(
  "plugins that exit, fail or hang in %s are not admitted and affect nobody else",
  async (event) => {
    const told = witnessed(await podLife());
    const kinds = ["exit", "fail", "hang"] as const;
    const ids = kinds.map((kind) => `50-${kind}-${event}`);
    const children = await daemon.configured(short, async () => {
      const started = kinds.map((kind, at) =>
        plugins.start(ids[at]!, "v0125", { [kind]: [event] }, { ready: false }),
      );
      for (const id of ids) {
        await until(`${id} is refused`, () => daemon.log.includes(`not admitted plugin=${id} `));
      }
      return Promise.all(started);
    });
    expect(witnessed(await podLife())).toEqual(told);
    for (const id of ids)
      expect(plugins.lines(id).at(-1)!.event).toMatch(/Configure|Sync|Close|End/);
    for (const child of children) await plugins.end(child);
  },
);

test("an update of a pod that a plugin rejects is not applied", async () => {
  const child = await plugins.start("50-no-update", "v0125", { fail: ["UpdatePodSandbox"] });
  const config = daemon.hostPodConfig();
  const id = await daemon.runPod(config);
  const resources = { memory_limit_in_bytes: toLong(1 << 30) };
  const update = () => daemon.client.UpdatePodSandboxResources({ pod_sandbox_id: id, resources });
  expect((await failure(update())).message).toContain("told to fail UpdatePodSandbox");
  const told = () =>
    plugins
      .lines("10-witness")
      .filter(({ event, pod }) => event === "PostUpdatePodSandbox" && pod?.id === id);
  expect(told()).toEqual([]);
  await plugins.end(child);
  await update();
  expect(told()).toHaveLength(1);
  await daemon.removePod(id);
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

test("the failure policy decides whether a timeout fails the request and closes the plugin", async () => {
  const hang = ["StartContainer"];
  const failing = await plugins.start("50-strict", "v0125", {
    hang,
    policy: { failRequest: true },
  });
  const error = await daemon.configured(short, () => failure(life()));
  expect(error.message).toContain("50-strict failed StartContainer");
  await plugins.end(failing);
  const kept = await plugins.start("50-kept", "v0125", { hang, policy: { keepConnected: true } });
  const name = await daemon.configured(short, life);
  expect(plugins.heardOf("50-kept", name)).toContain("RemoveContainer");
  await plugins.end(kept);
  const { containers } = await daemon.client.ListContainers({});
  for (const { id } of containers) await daemon.client.RemoveContainer({ container_id: id! });
});

test("errors of notifications do not fail requests", async () => {
  const after = containerEvents.filter((event) => /^(Post|Stop|Remove)/.test(event));
  const child = await plugins.start("50-after", "v061", { fail: after });
  await life();
  expect(daemon.log).toContain("50-after failed StopContainer");
  await plugins.end(child);
});

test("a pod that a plugin rejects leaves nothing", async () => {
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

test("pods and containers are not visible before plugins have accepted them", async () => {
  const [acceptPod, acceptContainer] = ["pod", "container"].map((name) => join(plugins.dir, name));
  const slow = { until: { RunPodSandbox: acceptPod!, CreateContainer: acceptContainer! } };
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
  writeFileSync(acceptPod!, "");
  expect(await coming).toBe(id);
  const container = daemon.create(id, config, ["true"]);
  await until("it was asked", () =>
    plugins.lines("50-slow").some(({ event }) => event === "CreateContainer"),
  );
  const { containers } = await daemon.client.ListContainers({ filter: { pod_sandbox_id: id } });
  expect(containers).toEqual([]);
  writeFileSync(acceptContainer!, "");
  await container;
  await daemon.removePod(id);
  await plugins.end(child);
});

test("creations during a synchronization wait, and the plugin gets their events", async () => {
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
  ["an env name with =", { env: [{ key: "A=B", value: "c" }] }, "not a variable name"],
])("%s fails the creation, and the plugin stays", async (_, adjust, why) => {
  const id = `50-bad-${why.replace(/\W+/g, "-")}`;
  const child = await plugins.start(id, "v061", { adjust });
  for (let time = 0; time < 2; time++) {
    expect((await failure(life())).message).toMatch(new RegExp(`NRI plugin ${id} failed.*${why}`));
  }
  await plugins.end(child);
});

test.each([
  ["5-x", "index", "not two digits"],
  ["50-bad name", "name", "must consist of"],
])("%s: a bad %s is rejected", async (id, _, why) => {
  await plugins.start(id, "v061", {}, { ready: false });
  await until("it is refused", () => daemon.log.includes(why));
  await life();
});

test("garbage on the socket closes only that connection", async () => {
  const socket = createConnection(plugins.socket);
  const ended = new Promise((resolve) => socket.once("close", resolve));
  socket.resume();
  socket.on("error", () => {});
  socket.write("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  await ended;
  const line = /not admitted.*a frame for connection 1195725856/;
  await until("the daemon says so", () => line.test(daemon.log));
  await life();
});

test("a plugin that never registers is closed at its deadline", async () => {
  await silentEnded;
  expect(daemon.log).toContain("not registered within 15000 ms");
}, 120_000);

test("a launched plugin that got SIGSTOP is killed and restarted", async () => {
  const stopped = plugins.lines("10-witness").findLast(({ event }) => event === "Configure")!.pid;
  const told = plugins.lines("10-witness").length;
  process.kill(stopped, "SIGSTOP");
  await daemon.configured(short, life);
  const back = () =>
    plugins
      .lines("10-witness")
      .slice(told)
      .some(({ event, pid }) => event === "Synchronize" && pid !== stopped);
  await until("another one is there", back);
  expect(() => process.kill(stopped, 0)).toThrow();
});

test("a launched plugin that dies is restarted and synchronized", async () => {
  const first = plugins.lines("10-witness").findLast(({ event }) => event === "Configure")!.pid;
  const started = () => plugins.lines("10-witness").filter(({ event }) => event === "Synchronize");
  const count = started().length;
  process.kill(first, "SIGKILL");
  await until("it is back", () => started().length > count);
  expect(daemon.log).toMatch(/NRI plugin ended, restarting after a delay/);
  const name = await life();
  expect(plugins.heardOf("10-witness", name)).toContain("RemoveContainer");
});
