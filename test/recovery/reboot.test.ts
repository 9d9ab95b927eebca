// Tests a restart of the node: everything in memory is gone (processes, namespaces, mounts, the state
// folder), and the records on the disk are of another boot. A kubelet finds every pod NOTREADY and every
// container EXITED, as it last saw them.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import { readdirSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { runtime } from "../../src/proto/messages.js";
import { readShimFile } from "../../src/shim/shim_file.ts";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { unmountUnder } from "../host.ts";
import { busyboxImage } from "../image_maker.ts";
import type { Snapshot } from "../leaks.ts";
import { startRegistry } from "../registry.ts";
import { chosenRuncShim, runcHandler } from "../shim_programs.ts";

const { PodSandboxState, ContainerState } = runtime.v1;

let daemon: Daemon;
let before: Snapshot;

beforeEach(async () => {
  daemon = await startDaemon({ network: false });
  daemon.writeNetwork();
  const list = join(daemon.cniDir, "10-test.conflist");
  // The packet filter's rules go with a boot, too, but not here.
  writeFileSync(list, readFileSync(list, "utf8").replace('"ipMasq":true', '"ipMasq":false'));
  before = daemon.snapshot();
});
afterEach(() => daemon?.[Symbol.asyncDispose]());

async function netnsOf(podId: string): Promise<string> {
  const status = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId, verbose: true });
  const info = JSON.parse(status.info["info"]!) as { networkSettings: { SandboxKey: string } };
  return info.networkSettings.SandboxKey;
}

/** The files of records on the disk. */
function recordsOnDisk(): string[] {
  return ["sandboxes", "containers"].flatMap((kind) => {
    const folder = join(daemon.dir, "graph", kind);
    const names = readdirSync(folder).flatMap((id) =>
      readdirSync(join(folder, id)).map((name) => join(id, name)),
    );
    return names
      .filter((name) => /\/(sandbox|container)\.(settled\.)?json$/.test(name))
      .map((name) => join(folder, name));
  });
}

/** What a restart of the node takes from a daemon that has ended: these processes and namespaces, too. */
async function restartNode(pids: number[], netns: string[]): Promise<void> {
  for (const pid of [...daemon.monitors(), ...pids]) process.kill(pid, "SIGKILL");
  await until("all have ended", () => daemon.scope.pids().length === 0);
  for (const path of netns) execFileSync("umount", [path]);
  for (const path of netns) rmSync(path);
  const state = join(daemon.dir, "state");
  for (const folder of [join(daemon.dir, "graph"), state]) unmountUnder(folder);
  for (const name of readdirSync(state)) rmSync(join(state, name), { recursive: true });
  for (const file of recordsOnDisk()) {
    const text = readFileSync(file, "utf8");
    writeFileSync(file, text.replace(/"bootId":"[^"]+"/, '"bootId":"another boot"'));
  }
}

/** But for descriptors: these are other processes. */
async function leaks(): Promise<string[]> {
  const all = await daemon.leaksSince(before);
  return all.filter((leak) => !leak.startsWith("descriptor: "));
}

async function podStates(): Promise<Record<string, number | undefined>> {
  const { items } = await daemon.client.ListPodSandbox({});
  return Object.fromEntries(items.map(({ id, state }) => [id!, state ?? 0]));
}

test("every pod is NOTREADY, every container EXITED, and all can be removed", async () => {
  const [pod, host] = [daemon.podConfig(), daemon.hostPodConfig()];
  const [podId, hostId] = [await daemon.runPod(pod), await daemon.runPod(host)];
  const exited = (await daemon.output(hostId, host, "exit 7")).id;
  const created = await daemon.create(hostId, host, ["true"]);
  const ran = [
    await daemon.run(podId, pod, ["sleep", "600"]),
    await daemon.run(hostId, host, ["sleep", "600"]),
  ];
  const pids = await Promise.all(ran.map((id) => daemon.pidOf(id)));
  const netns = await netnsOf(podId);
  // In its own time: nobody ends the daemon in order.
  const settled = (file: string) => file.includes(".settled.") && statSync(file).size > 0;
  await until("5 records are settled", () => recordsOnDisk().filter(settled).length === 5);
  const record = join(daemon.dir, "graph/containers", exited, "container.settled.json");
  await until("the exit is settled", () => readFileSync(record, "utf8").includes('"exited"'));
  await daemon.stop("SIGKILL");
  await restartNode(pids, [netns]);
  await daemon.start();
  expect(await podStates()).toEqual({
    [podId]: PodSandboxState.SANDBOX_NOTREADY,
    [hostId]: PodSandboxState.SANDBOX_NOTREADY,
  });
  for (const id of ran) {
    expect(await daemon.status(id)).toMatchObject({
      state: ContainerState.CONTAINER_EXITED,
      exit_code: 255,
      reason: "Unknown",
      message: "the node was restarted",
    });
  }
  expect((await daemon.status(exited)).exit_code).toBe(7);
  expect((await daemon.status(created)).state).toBe(ContainerState.CONTAINER_EXITED);
  // As a kubelet goes on.
  const next = daemon.podConfig({ metadata: { ...pod.metadata!, attempt: 1 } });
  const nextId = await daemon.runPod(next);
  await daemon.output(nextId, next, "exit 0");
  for (const id of [podId, hostId, nextId]) await daemon.removePod(id);
  expect(await leaks()).toEqual([]);
});

test("a daemon that ends in order writes what has changed in its last second", async () => {
  const host = daemon.hostPodConfig();
  const hostId = await daemon.runPod(host);
  const id = await daemon.run(hostId, host, ["sleep", "600"]);
  const pid = await daemon.pidOf(id);
  await daemon.stop();
  await restartNode([pid], []);
  await daemon.start();
  const { state, exit_code } = await daemon.status(id);
  expect({ state, exit_code }).toEqual({ state: ContainerState.CONTAINER_EXITED, exit_code: 255 });
  await daemon.removePod(hostId);
  expect(await leaks()).toEqual([]);
});

test("without a registry all pods come back from images that were pulled before", async () => {
  const registry = await startRegistry();
  const image = `${registry.host}/busybox:1`;
  await registry.push("busybox", "1", busyboxImage());
  await daemon.client.PullImage({ image: { image } });
  const configs = [daemon.podConfig(), daemon.hostPodConfig()];
  const ids = [await daemon.runPod(configs[0]!), await daemon.runPod(configs[1]!)];
  const ran: string[] = [];
  for (const [index, id] of ids.entries()) {
    ran.push(await daemon.run(id, configs[index]!, ["sleep", "600"], { image: { image } }));
  }
  const pids = await Promise.all(ran.map((id) => daemon.pidOf(id)));
  const netns = await netnsOf(ids[0]!);
  await daemon.stop();
  await restartNode(pids, [netns]);
  await registry[Symbol.asyncDispose]();
  await daemon.start();
  // As a kubelet goes on with imagePullPolicy IfNotPresent.
  expect((await daemon.client.ImageStatus({ image: { image } })).image?.repo_tags).toContain(image);
  for (const config of configs) {
    const next = { ...config, metadata: { ...config.metadata!, attempt: 1 } };
    const id = await daemon.runPod(next);
    ids.push(id);
    const again = await daemon.run(id, next, ["sleep", "600"], { image: { image } });
    expect((await daemon.status(again)).state).toBe(ContainerState.CONTAINER_RUNNING);
  }
  for (const id of ids) await daemon.removePod(id);
});

const version = chosenRuncShim();
test.skipIf(version === undefined)("containers of a shim have ended, too", async () => {
  daemon.writeConfig({ runtimes: { shim: runcHandler(version!) } });
  await daemon.restart();
  const host = daemon.hostPodConfig();
  const hostId = await daemon.runPod(host, "shim");
  const id = await daemon.run(hostId, host, ["sleep", "600"]);
  before = daemon.snapshot(); // the shims' folders stay
  const shim = readShimFile(join(daemon.dir, "state/monitor/shims", id))!;
  const pid = await daemon.pidOf(id);
  await daemon.stop();
  await restartNode([pid, shim.pid], []);
  await daemon.start();
  expect(await daemon.status(id)).toMatchObject({
    state: ContainerState.CONTAINER_EXITED,
    exit_code: 255,
    message: "the node was restarted",
  });
  const next = daemon.hostPodConfig({ metadata: { ...host.metadata!, attempt: 1 } });
  const nextId = await daemon.runPod(next, "shim");
  expect((await daemon.output(nextId, next, "exit 6")).exitCode).toBe(6);
  for (const one of [hostId, nextId]) await daemon.removePod(one);
  expect(await leaks()).toEqual([]);
});

test("power that fails may leave older records: no pod vanishes, no container can be started", async () => {
  const pod = daemon.podConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  const [pid, netns] = [await daemon.pidOf(id), await netnsOf(podId)];
  await daemon.stop();
  await restartNode([pid], [netns]);
  for (const file of recordsOnDisk().filter((name) => name.includes(".settled."))) {
    truncateSync(file);
  }
  await daemon.start();
  expect(await podStates()).toEqual({ [podId]: PodSandboxState.SANDBOX_NOTREADY });
  expect((await daemon.status(id)).state).toBe(ContainerState.CONTAINER_EXITED);
  await daemon.removePod(podId);
  expect(await leaks()).toEqual([]);
});
