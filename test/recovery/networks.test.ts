// Tests records that lack the network of pods that are attached to one, or that are missing: everything that
// the plugins and the kernel hold for these pods is removed all the same.
import { afterAll, beforeAll, beforeEach, expect, test } from "bun:test";
import {
  existsSync,
  globSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { unmountUnder } from "../host.ts";
import { leaksBetween, type Snapshot } from "../leaks.ts";
import { recordFile } from "../records.ts";

let daemon: Daemon;

beforeAll(async () => {
  daemon = await startDaemon();
});
afterAll(() => daemon?.[Symbol.asyncDispose]());
/** A test that failed may have left pods, and no daemon. */
beforeEach(async () => {
  if (daemon.pid < 0) await daemon.start();
  await daemon.removeAllPods();
});

function leases(of = daemon): string[] {
  return readdirSync(join(of.dir, "ipam", of.token)).filter((name) => /^\d/.test(name));
}

/** But descriptors: they were another process's. */
async function leftSince(before: Snapshot, of = daemon): Promise<string[]> {
  const left = () =>
    leaksBetween(before, of.snapshot()).filter((leak) => !leak.startsWith("descriptor"));
  await until("nothing is left", () => left().length === 0).catch(() => {});
  return left();
}

test.each<[string, unknown]>([
  ["an object without anything", [{}]],
  ["without a list", [{ confList: null, ifName: "eth0" }]],
  ["empty", []],
  ["null", null],
])("a record whose CNI part is %s: Stop takes what is cached, and Remove works", async (_, cni) => {
  const before = daemon.snapshot();
  const podId = await daemon.runPod(daemon.podConfig());
  expect(leases()).toHaveLength(1);
  await daemon.stop("SIGKILL");
  const file = recordFile(daemon.dir, "sandbox", podId);
  const record = JSON.parse(readFileSync(file, "utf8")) as object;
  writeFileSync(file, JSON.stringify({ ...record, cni }));
  await daemon.start();
  await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId, verbose: true });
  await daemon.client.StopPodSandbox({ pod_sandbox_id: podId });
  expect(leases()).toEqual([]);
  await daemon.client.RemovePodSandbox({ pod_sandbox_id: podId });
  expect(await leftSince(before)).toEqual([]);
});

test("both records of a live pod are damaged: its network goes, rules and address too", async () => {
  const before = daemon.snapshot();
  const pod = daemon.podConfig({
    port_mappings: [{ protocol: 0, container_port: 80, host_port: 30_181 }],
  });
  const podId = await daemon.runPod(pod);
  await daemon.run(podId, pod, ["sleep", "600"]);
  await daemon.stop("SIGKILL");
  const folder = join(daemon.dir, "graph/sandboxes", podId);
  const files = globSync(join(folder, "sandbox*.json"));
  for (const file of [recordFile(daemon.dir, "sandbox", podId), ...files])
    writeFileSync(file, "\0\0\0");
  await daemon.start();
  await until("the lease is free", () => leases().length === 0);
  for (const { id } of (await daemon.client.ListContainers({})).containers)
    await daemon.client.RemoveContainer({ container_id: id! });
  expect(await leftSince(before)).toEqual([]);
});

test.each(["runs", "was stopped"])(
  "the graph is lost while a pod %s: all that it had goes",
  async (how) => {
    await using own = await startDaemon();
    const before = own.snapshot();
    const pod = own.podConfig();
    const podId = await own.runPod(pod);
    const id = await own.run(podId, pod, ["sleep", "600"]);
    const file = recordFile(own.dir, "sandbox", podId);
    const record = JSON.parse(readFileSync(file, "utf8")) as {
      namespaces: { net: { path: string } };
    };
    if (how === "was stopped") await own.client.StopPodSandbox({ pod_sandbox_id: podId });
    await own.stop("SIGKILL");
    unmountUnder(join(own.dir, "graph"));
    rmSync(join(own.dir, "graph"), { recursive: true });
    await own.start();
    await until("no pod is listed", async () => {
      const { items } = await own.client.ListPodSandbox({});
      return items.length === 0;
    });
    expect((await own.client.ListContainers({})).containers).toEqual([]);
    expect(leases(own)).toEqual([]);
    expect(existsSync(record.namespaces.net.path)).toBe(false);
    expect(await leftSince(before, own)).toEqual([]);
    expect(existsSync(join(own.dir, "state/records", `container-${id}.json`))).toBe(false);
  },
);

test("a folder where the network namespace's file was: Remove works, after a restart too", async () => {
  const before = daemon.snapshot();
  const podIds = [await daemon.runPod(daemon.podConfig()), await daemon.runPod(daemon.podConfig())];
  for (const id of podIds) {
    const text = readFileSync(recordFile(daemon.dir, "sandbox", id), "utf8");
    const { net } = (JSON.parse(text) as { namespaces: { net: { path: string } } }).namespaces;
    await daemon.client.StopPodSandbox({ pod_sandbox_id: id });
    rmSync(net.path);
    mkdirSync(net.path);
  }
  await daemon.removePod(podIds[0]!);
  await daemon.restart("SIGKILL");
  await daemon.removePod(podIds[1]!);
  const files = readdirSync("/var/run/netns");
  expect(podIds.filter((id) => files.some((name) => name.includes(id.slice(0, 32))))).toEqual([]);
  expect(await leftSince(before)).toEqual([]);
});
