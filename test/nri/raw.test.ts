// Tests plugins without a stub: garbage, evictions, unknown events, messages over the limit.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { toLong } from "../../src/base/int64.ts";
import { nri } from "../../src/proto/nri.js";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import type { OciSpec } from "../../src/spec/oci.ts";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { frame, message, request } from "../sys/frames.ts";
import { Plugins } from "./plugins.ts";
import { RawPlugin, type Answers } from "./raw_plugin.ts";

const api = nri.pkg.api.v1alpha1;
const plugins = new Plugins();
let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;

beforeAll(async () => {
  const keys = { "plugin-request-timeout": "10s", "metrics-port": 0 };
  daemon = await startDaemon({ config: plugins.config(keys) });
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  plugins[Symbol.dispose]();
});

let serial = 10;

/** Registers a plugin with a new index; resolves when it is in service. */
async function inService(answers: Answers = {}): Promise<{ plugin: RawPlugin; id: string }> {
  const index = String(++serial);
  const plugin = new RawPlugin(plugins.socket, answers);
  await plugin.register(index, "raw");
  await until("it is synchronized", () =>
    daemon.log.includes(`plugin in service plugin=${index}-raw`),
  );
  return { plugin, id: `${index}-raw` };
}

const spec = (id: string) => {
  const path = join(daemon.dir, "graph/containers", id, "config.json");
  return JSON.parse(readFileSync(path, "utf8")) as OciSpec;
};

const refusal = (call: Promise<unknown>) =>
  call.then(
    () => "it was not refused",
    (error: Error) => error.message,
  );

/** Waits for a line of the daemon's log: it may come after the end of a connection. */
const logged = (line: RegExp) =>
  until(`the daemon logs ${String(line)}`, () => line.test(daemon.log));

const sleeper = () => daemon.run(podId, pod, ["sleep", "600"]);

/** Starts a container that exits at once when it is stopped. */
async function trapper(): Promise<string> {
  const command = "trap 'exit 9' TERM; echo up; while :; do sleep 0.1; done";
  const id = await daemon.run(podId, pod, command);
  await daemon.logged(id, "up");
  return id;
}

async function works(): Promise<void> {
  const id = await sleeper();
  await daemon.client.RemoveContainer({ container_id: id });
}

test("unknown events are rejected", async () => {
  const Configure = () => api.ConfigureResponse.encode({ events: 1 << 20 }).finish();
  using plugin = new RawPlugin(plugins.socket, { Configure });
  await plugin.register("10", "mask");
  await plugin.ended;
  await logged(/10-mask.*subscribes to unknown events: 0x100000/);
});

test("registering twice and calls before registration are rejected", async () => {
  using early = new RawPlugin(plugins.socket, {});
  expect(await refusal(early.call("UpdateContainers", new Uint8Array()))).toContain(
    "not registered",
  );
  expect(await refusal(early.call("NoSuchMethod", new Uint8Array()))).toContain("no method");
  const { plugin } = await inService();
  expect(await refusal(plugin.register("11", "again"))).toContain("already registered");
  plugin[Symbol.dispose]();
});

test.each<[what: string, answer: Uint8Array, why: string]>([
  ["garbage", Uint8Array.of(0xff, 0xff, 0xff), "cannot decode the answer"],
  ["5 MiB", new Uint8Array(5 << 20), "at most"],
])(
  "a plugin that answers %s is closed, and the container is created without it",
  async (_, answer, why) => {
    const { plugin, id } = await inService({ CreateContainer: () => answer });
    await works();
    await plugin.ended;
    await logged(new RegExp(`NRI plugin out of service.*${id}.*${why}`));
  },
);

test.each(["Configure", "Synchronize"])(
  "a plugin that answers garbage to %s is not admitted",
  async (method) => {
    const index = String(++serial);
    using plugin = new RawPlugin(plugins.socket, { [method]: () => Uint8Array.of(0xff, 0xff) });
    await plugin.register(index, "raw");
    await plugin.ended;
    await logged(new RegExp(`not admitted.*${index}-raw.*cannot decode the answer`));
    await works();
  },
);

test("an answer after its deadline is dropped, and a keep_connected plugin stays in service", async () => {
  const failure_policy = { keep_connected: true };
  const Configure = () => api.ConfigureResponse.encode({ failure_policy }).finish();
  const adjust = { annotations: { late: "1" } };
  const bytes = api.CreateContainerResponse.encode({ adjust }).finish();
  const { promise: late, resolve: answer } = Promise.withResolvers<Uint8Array>();
  const { plugin, id } = await inService({ Configure, CreateContainer: () => late });
  const first = await daemon.configured({ "plugin-request-timeout": "1s" }, sleeper);
  answer(bytes);
  const second = await sleeper();
  const { annotations } = spec(second);
  expect([spec(first).annotations["late"], annotations["late"]]).toEqual([undefined, "1"]);
  expect(daemon.log).toMatch(
    new RegExp(`${id} failed CreateContainer: .*; the request continues without it`),
  );
  for (const one of [first, second]) await daemon.client.RemoveContainer({ container_id: one });
  plugin[Symbol.dispose]();
});

test("a plugin gets the end of a container that exits during its synchronization", async () => {
  const nobody = async () => (await daemon.client.NriPlugins({})).plugins.length === 0;
  await until("the others are gone", nobody);
  const id = await sleeper();
  const { promise: asked, resolve: onAsk } = Promise.withResolvers<void>();
  const { promise: answer, resolve: onAnswer } = Promise.withResolvers<Uint8Array>();
  const Synchronize = () => {
    onAsk();
    return answer;
  };
  const index = String(++serial);
  using plugin = new RawPlugin(plugins.socket, { Synchronize });
  await plugin.register(index, "raw");
  await asked;
  await daemon.client.StopContainer({ container_id: id, timeout: toLong(0) });
  expect(plugin.times("StopContainer")).toBe(0);
  onAnswer(new Uint8Array());
  await until("it hears", () => plugin.times("StopContainer") === 1);
  await daemon.client.RemoveContainer({ container_id: id });
  expect(plugin.times("RemoveContainer")).toBe(1);
});

/** Calls while one plugin thinks about the event and another one connects; returns what the latter is told. */
async function connectDuring(event: string, call: () => Promise<unknown>) {
  const { promise: asked, resolve: onAsk } = Promise.withResolvers<void>();
  const { promise: answer, resolve: onAnswer } = Promise.withResolvers<Uint8Array>();
  const thinks = () => {
    onAsk();
    return answer;
  };
  const { plugin } = await inService({ [event]: thinks });
  const update = call();
  await asked;
  using late = new RawPlugin(plugins.socket, {});
  await late.register(String(++serial), "raw");
  await until("it is configured", () => late.times("Configure") === 1);
  await sleep(100); // for the daemon to get to its synchronization
  onAnswer(new Uint8Array());
  await update;
  await until("it is synchronized", () => late.times("Synchronize") === 1);
  plugin[Symbol.dispose]();
  const { payload } = late.heard.find(({ method }) => method === "Synchronize")!;
  return api.SynchronizeRequest.decode(payload);
}

const limit = toLong(96 << 20);
const limited = { memory_limit_in_bytes: limit };

test("a plugin that connects during a container's update is told the limits after it", async () => {
  const container_id = await sleeper();
  const { containers } = await connectDuring("UpdateContainer", () =>
    daemon.client.UpdateContainerResources({ container_id, linux: limited }),
  );
  const container = containers.find(({ id }) => id === container_id);
  expect(container?.linux?.resources?.memory?.limit?.value).toEqual(limit);
  await daemon.client.RemoveContainer({ container_id });
});

test("a plugin that connects during a pod's update is told the limits after it", async () => {
  const config = daemon.hostPodConfig();
  const pod_sandbox_id = await daemon.runPod(config);
  const { pods } = await connectDuring("UpdatePodSandbox", () =>
    daemon.client.UpdatePodSandboxResources({ pod_sandbox_id, resources: limited }),
  );
  const pod = pods.find(({ id }) => id === pod_sandbox_id);
  expect(pod?.linux?.pod_resources?.memory?.limit?.value).toEqual(limit);
  await daemon.removePod(pod_sandbox_id);
});

test("each event, also a notification, waits for the previous plugin's answer", async () => {
  const [heardMs, event]: [number[], string] = [[], "PostCreateContainer"];
  const first = await inService({ [event]: () => void heardMs.push(performance.now()) });
  const second = await inService({
    [event]: () => {
      heardMs.push(performance.now());
      return new Uint8Array();
    },
  });
  await daemon.configured({ "plugin-request-timeout": "4s" }, works);
  expect(heardMs).toHaveLength(2);
  // The first one's deadline is four seconds, of which this process may have slept some.
  expect(heardMs[1]! - heardMs[0]!).toBeGreaterThan(2_000);
  await first.plugin.ended;
  second.plugin[Symbol.dispose]();
});

test("a 5 MiB message from a plugin closes only its connection", async () => {
  const { plugin, id } = await inService();
  plugin.socket.write(frame(2, message(1, 1, Buffer.alloc(5 << 20))));
  await plugin.ended;
  await logged(new RegExp(`NRI plugin out of service.*${id}.*at most`));
  await works();
});

test.each(["CreateContainer", "UpdateContainer"])(
  "an eviction in %s's answer stops that container",
  async (method) => {
    const victim = await trapper();
    const evict = [{ container_id: victim, reason: "too much" }];
    const answer = api[`${method as "CreateContainer"}Response`].encode({ evict }).finish();
    const { plugin } = await inService({ [method]: () => answer });
    const id = await sleeper();
    const linux = { cpu_shares: toLong(300) };
    await daemon.client.UpdateContainerResources({ container_id: id, linux });
    plugin[Symbol.dispose]();
    const { exitCode, status } = await daemon.exited(victim);
    expect(exitCode).toBe(9);
    expect(status.message).toBe("an NRI plugin evicted the container: too much");
    expect(daemon.log).toContain(
      `NRI plugin evicts a container container=${victim} reason="too much"`,
    );
    for (const one of [id, victim]) await daemon.client.RemoveContainer({ container_id: one });
  },
);

test("answers to UpdateContainer and StopContainer update other containers", async () => {
  const other = await sleeper();
  const update = (shares: number) => {
    const resources = { cpu: { shares: { value: toLong(shares) } } };
    return { update: [{ container_id: other, linux: { resources } }] };
  };
  const { plugin } = await inService({
    UpdateContainer: () => api.UpdateContainerResponse.encode(update(700)).finish(),
    StopContainer: () => api.StopContainerResponse.encode(update(900)).finish(),
  });
  const id = await sleeper();
  const linux = { cpu_shares: toLong(300) };
  await daemon.client.UpdateContainerResources({ container_id: id, linux });
  const shares = (of: string) => Number(spec(of).linux.resources.cpu?.shares);
  expect([shares(id), shares(other)]).toEqual([300, 700]);
  await daemon.client.StopContainer({ container_id: id, timeout: toLong(0) });
  await until("it is changed", () => shares(other) === 900);
  plugin[Symbol.dispose]();
  for (const one of [id, other]) await daemon.client.RemoveContainer({ container_id: one });
});

test("UpdateContainers returns failed updates, evicts, and rejects invalid updates", async () => {
  const { plugin } = await inService();
  const victim = await trapper();
  const unknown = { container_id: "f".repeat(64), linux: { resources: { cpu: { cpus: "0" } } } };
  const kernel = { memory: { kernel: { value: toLong(5) } } };
  const never = { container_id: victim, linux: { resources: kernel } };
  const asked = {
    update: [unknown, never, { container_id: victim, linux: {} }],
    evict: [{ container_id: victim, reason: "go" }],
  };
  const answer = await plugin.call(
    "UpdateContainers",
    api.UpdateContainersRequest.encode(asked).finish(),
  );
  const { failed } = api.UpdateContainersResponse.decode(answer);
  expect(failed.map(({ container_id }) => container_id)).toEqual([unknown.container_id, victim]);
  expect((await daemon.exited(victim)).exitCode).toBe(9);
  const negative = { memory: { limit: { value: toLong(-7) } } };
  const bad = { update: [{ container_id: victim, linux: { resources: negative } }] };
  expect(
    await refusal(
      plugin.call("UpdateContainers", api.UpdateContainersRequest.encode(bad).finish()),
    ),
  ).toContain("memory.limit: -7");
  plugin[Symbol.dispose]();
  await daemon.client.RemoveContainer({ container_id: victim });
});

test("a flood of UpdateContainers is answered, and pods still run", async () => {
  const { plugin } = await inService();
  const update = { container_id: "none", linux: { resources: { cpu: { cpus: "0" } } } };
  const payload = api.UpdateContainersRequest.encode({ update: [update] }).finish();
  const calls = Array.from({ length: 500 }, () =>
    plugin.call("UpdateContainers", payload).then(
      () => "answered",
      (error: Error) => error.message,
    ),
  );
  await works();
  for (const answer of await Promise.all(calls)) {
    expect(answer).toMatch(/^answered$|calls are being served/);
  }
  plugin[Symbol.dispose]();
});

test("hundreds of connections with garbage, one after the other, leave no descriptor open", async () => {
  const open = () => readdirSync(`/proc/${daemon.pid}/fd`).length;
  const before = open();
  for (let i = 0; i < 300; i++) {
    using plugin = new RawPlugin(plugins.socket, {});
    plugin.socket.write(Buffer.from(`${i}`.repeat(i + 8)));
    await plugin.ended;
  }
  // Not exactly equal: the daemon may open a few descriptors of its own meanwhile.
  await until("all are closed", () => open() < before + 30);
  await works();
});

test("a plugin that disconnects in the middle of a message affects nobody else", async () => {
  const { plugin } = await inService();
  const whole = frame(
    2,
    message(1, 1, request("nri.pkg.api.v1alpha1.Runtime", "X", Buffer.alloc(9))),
  );
  plugin.socket.write(whole.subarray(0, whole.length - 3));
  plugin.socket.end();
  await plugin.ended;
  await works();
});
