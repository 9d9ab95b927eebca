// Tests the stats of containers and pods under real load; only running ones have stats.
import { afterAll, afterEach, beforeAll, describe, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import { createSocket } from "node:dgram";
import { existsSync, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { toBigInt, toLong } from "../../src/base/int64.ts";
import { runtime } from "../../src/proto/messages.js";
import type { ContainerStats, PodSandboxConfig, UInt64Value } from "../../src/proto/types.ts";
import { failure } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { until } from "../stats.ts";

const { NamespaceMode } = runtime.v1;

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
beforeAll(async () => {
  // Only calls read: otherwise the daemon may read a container before its first call.
  daemon = await startDaemon({ config: { "stats-collect-period": "1h" } });
  pod = daemon.podConfig({ labels: { app: "one" } });
  podId = await daemon.runPod(pod);
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

afterEach(async () => {
  const { containers } = await daemon.client.ListContainers({});
  for (const { id } of containers) await daemon.client.RemoveContainer({ container_id: id! });
});

const count = (value: UInt64Value | null | undefined) => toBigInt(value?.value);

async function statsOf(id: string): Promise<ContainerStats> {
  return (await daemon.client.ContainerStats({ container_id: id })).stats!;
}

/** Files of the container's cgroups that the daemon has open. */
function openCgroupFiles(id: string): string[] {
  const folder = `/proc/${daemon.pid}/fd`;
  const links = readdirSync(folder).flatMap((fd) => {
    try {
      return [readlinkSync(`${folder}/${fd}`)];
    } catch {
      return []; // closed meanwhile
    }
  });
  return links.filter((link) => link.startsWith("/sys/fs/cgroup/") && link.includes(id));
}

/** Four of 1,000 bytes to a port where nobody listens: the pod answers that it is closed. */
async function sendDatagrams(address: string): Promise<void> {
  const socket = createSocket("udp4");
  for (let sent = 0; sent < 4; sent++) {
    await new Promise((resolve) => socket.send(Buffer.alloc(1000), 9, address, resolve));
    await sleep(50);
  }
  socket.close();
}

describe("a container", () => {
  test("that is busy uses CPU; the rate is known from the second reading on", async () => {
    const id = await daemon.run(podId, pod, "while :; do :; done");
    const first = await statsOf(id);
    expect(first.attributes).toMatchObject({ id, metadata: { attempt: 0 } });
    expect(toBigInt(first.cpu!.timestamp)).toBeGreaterThan(1_700_000_000_000_000_000n);
    expect(first.cpu!.usage_nano_cores).toBeNull();
    const second = await until(
      () => statsOf(id),
      ({ cpu }) => cpu!.usage_nano_cores !== null,
    );
    expect(count(second.cpu!.usage_core_nano_seconds)).toBeGreaterThan(
      count(first.cpu!.usage_core_nano_seconds),
    );
    expect(count(second.cpu!.usage_nano_cores)).toBeGreaterThan(10_000_000n);
    expect(count(second.cpu!.usage_nano_cores)).toBeLessThan(1_500_000_000n);
  });

  test("that uses memory shows it, and the memory left to its limit", async () => {
    const limit = 128n << 20n;
    const resources = { memory_limit_in_bytes: toLong(limit) };
    const command =
      "until [ -e /go ]; do sleep 0.1; done; dd if=/dev/zero bs=32M count=2 | sleep 600";
    const id = await daemon.run(podId, pod, command, { linux: { resources } });
    const before = (await statsOf(id)).memory!;
    await daemon.exec(id, "touch /go");
    const after = await until(
      () => statsOf(id),
      ({ memory }) => count(memory!.rss_bytes) > count(before.rss_bytes) + (20n << 20n),
    );
    const memory = after.memory!;
    expect(count(memory.usage_bytes)).toBeGreaterThanOrEqual(count(memory.working_set_bytes));
    expect(count(memory.working_set_bytes)).toBeGreaterThan(20n << 20n);
    expect(count(memory.available_bytes)).toBe(limit - count(memory.working_set_bytes));
    expect(count(memory.page_faults)).toBeGreaterThan(count(before.page_faults));
    expect(memory.major_page_faults).not.toBeNull();
  });

  test("without a limit has no available bytes, and pressure where the kernel counts it", async () => {
    const id = await daemon.run(podId, pod, ["sleep", "600"]);
    const { memory, cpu, io } = await statsOf(id);
    expect(memory!.available_bytes).toBeNull();
    if (!existsSync("/proc/pressure/cpu")) {
      expect([memory!.psi, cpu!.psi, io]).toEqual([null, null, null]);
      return;
    }
    for (const part of [memory, cpu, io]) expect(part!.psi!.Some!.Total).toBeDefined();
    for (const part of [memory, io]) expect(part!.psi!.Full!.Avg300).toBeGreaterThanOrEqual(0);
    // Linux counts it from 5.13 on.
    const hasFull = readFileSync("/proc/pressure/cpu", "utf8").includes("full");
    expect(cpu!.psi!.Full !== null).toBe(hasFull);
  });

  test("has its cgroup's files kept open while it runs, once each", async () => {
    const id = await daemon.run(podId, pod, ["sleep", "600"]);
    expect(openCgroupFiles(id)).toEqual([]);
    await statsOf(id);
    const open = openCgroupFiles(id);
    expect(open.some((file) => file.endsWith("/memory.stat"))).toBe(true);
    expect(new Set(open).size).toBe(open.length);
    const { timestamp } = (await statsOf(id)).cpu!;
    await until(
      () => statsOf(id),
      ({ cpu }) => toBigInt(cpu!.timestamp) > toBigInt(timestamp),
    );
    expect(openCgroupFiles(id).sort()).toEqual(open.sort());
    await daemon.client.StopContainer({ container_id: id });
    await until(
      async () => openCgroupFiles(id),
      (files) => files.length === 0,
    );
  });

  test("that is not running has no stats, and an unknown one is NOT_FOUND", async () => {
    const id = await daemon.create(podId, pod, ["true"]);
    const code = async (container_id: string) =>
      (await failure(daemon.client.ContainerStats({ container_id }))).code;
    expect(await code(id)).toBe("FAILED_PRECONDITION");
    await daemon.client.StartContainer({ container_id: id });
    await daemon.exited(id);
    expect(await code(id)).toBe("FAILED_PRECONDITION");
    expect(await code("0badf00d")).toBe("NOT_FOUND");
    expect(await code("")).toBe("NOT_FOUND");
  });
});

describe("lists", () => {
  test("of container stats have running containers, by id, pod and labels; streams are equal", async () => {
    const other = daemon.hostPodConfig();
    const otherPod = await daemon.runPod(other);
    const a = await daemon.run(podId, pod, ["sleep", "600"], { labels: { app: "a" } });
    const b = await daemon.run(otherPod, other, ["sleep", "600"], { labels: { app: "b" } });
    const ended = await daemon.run(podId, pod, ["true"]);
    await daemon.exited(ended);
    const created = await daemon.create(podId, pod, ["true"], { labels: { app: "b" } });
    const ids = async (filter?: runtime.v1.ContainerStatsFilter.$Properties) => {
      const { stats } = await daemon.client.ListContainerStats({ filter });
      const streamed: string[] = [];
      for await (const batch of daemon.client.StreamContainerStats({ filter })) {
        streamed.push(...batch.container_stats.map(({ attributes }) => attributes!.id!));
      }
      const listed = stats.map(({ attributes }) => attributes!.id!);
      expect(streamed).toEqual(listed);
      return listed.sort();
    };
    expect(await ids()).toEqual([a, b].sort());
    expect(await ids({ id: a.slice(0, 16) })).toEqual([a]);
    expect(await ids({ pod_sandbox_id: otherPod })).toEqual([b]);
    expect(await ids({ label_selector: { app: "b" } })).toEqual([b]);
    expect(await ids({ id: ended })).toEqual([]);
    expect(await ids({ id: created })).toEqual([]);
    expect(await ids({ id: "0badf00d" })).toEqual([]);
    expect(await ids({ pod_sandbox_id: "0badf00d" })).toEqual([]);
    await daemon.removePod(otherPod);
  });
});

describe("a pod", () => {
  const podStats = async (id = podId) =>
    (await daemon.client.PodSandboxStats({ pod_sandbox_id: id })).stats!;

  test("has the figures of its cgroup, its containers and its processes", async () => {
    const id = await daemon.run(podId, pod, "sleep 600 & sleep 600 & wait");
    const stats = await until(podStats, ({ linux }) => count(linux!.process!.process_count) === 3n);
    expect(stats.attributes).toMatchObject({ id: podId, labels: { app: "one" } });
    const linux = stats.linux!;
    expect(linux.containers!.map(({ attributes }) => attributes!.id)).toEqual([id]);
    const own = linux.containers![0]!;
    expect(count(linux.cpu!.usage_core_nano_seconds)).toBeGreaterThanOrEqual(
      count(own.cpu!.usage_core_nano_seconds),
    );
    expect(count(linux.memory!.usage_bytes)).toBeGreaterThan(0n);
    expect(toBigInt(linux.process!.timestamp)).toBeGreaterThan(0n);
  });

  test("counts the traffic of its interface, with and without a process in it", async () => {
    const { status } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId });
    const { ip } = status!.network!;
    const traffic = async () => {
      const before = (await podStats()).linux!.network!.default_interface!;
      expect(before.name).toBe("eth0");
      await sendDatagrams(ip!);
      // A busy kernel may receive them later.
      const after = await until(
        async () => (await podStats()).linux!.network!,
        ({ default_interface: now }) =>
          count(now!.rx_bytes) - count(before.rx_bytes) > 3000n &&
          count(now!.tx_bytes) - count(before.tx_bytes) > 100n,
      );
      expect(after.interfaces).toEqual([]);
      expect(toBigInt(after.timestamp)).toBeGreaterThan(0n);
      expect(count(after.default_interface!.rx_errors)).toBe(0n);
    };
    expect((await podStats()).linux!.containers).toEqual([]);
    await traffic();
    await daemon.run(podId, pod, ["sleep", "600"]);
    await traffic();
  });

  test("without an interface, as while it is stopped, has no network figures", async () => {
    const bare = daemon.podConfig({ labels: { app: "bare" } });
    const id = await daemon.runPod(bare);
    const containerId = await daemon.run(id, bare, ["sleep", "600"]);
    expect((await podStats(id)).linux!.network!.default_interface!.name).toBe("eth0");
    const network = `/proc/${await daemon.pidOf(containerId)}/ns/net`;
    execFileSync("nsenter", [`--net=${network}`, "ip", "link", "delete", "eth0"]);
    // A kubelet would panic at figures without a default interface.
    expect((await podStats(id)).linux!.network).toBeNull();
    await daemon.removePod(id);
  });

  test("in the node's network has no network figures", async () => {
    const host = daemon.hostPodConfig({ labels: { app: "host" } });
    expect(host.linux!.security_context!.namespace_options!.network).toBe(NamespaceMode.NODE);
    const id = await daemon.runPod(host);
    expect((await podStats(id)).linux!.network).toBeNull();
    const filter = { label_selector: { app: "host" } };
    const { stats } = await daemon.client.ListPodSandboxStats({ filter });
    expect(stats.map(({ attributes }) => attributes!.id)).toEqual([id]);
    await daemon.removePod(id);
  });

  test("that was stopped has no stats; lists hold those that are ready; an unknown one is not found", async () => {
    const config = daemon.hostPodConfig();
    const id = await daemon.runPod(config);
    const ids = async (filter?: runtime.v1.PodSandboxStatsFilter.$Properties) => {
      const { stats } = await daemon.client.ListPodSandboxStats({ filter });
      const streamed: string[] = [];
      for await (const batch of daemon.client.StreamPodSandboxStats({ filter })) {
        streamed.push(...batch.pod_sandbox_stats.map(({ attributes }) => attributes!.id!));
      }
      const listed = stats.map(({ attributes }) => attributes!.id!);
      expect(streamed).toEqual(listed);
      return listed.sort();
    };
    expect(await ids()).toEqual([podId, id].sort());
    expect(await ids({ id: id.slice(0, 16) })).toEqual([id]);
    expect(await ids({ id: "0badf00d" })).toEqual([]);
    await daemon.client.StopPodSandbox({ pod_sandbox_id: id });
    expect(await ids()).toEqual([podId]);
    const error = await failure(podStats(id));
    expect(error.code).toBe("FAILED_PRECONDITION");
    await daemon.client.RemovePodSandbox({ pod_sandbox_id: id });
    expect((await failure(podStats(id))).code).toBe("NOT_FOUND");
  });
});

test.each([
  ["1s", "often"],
  ["1h", "seldom"],
])("a stats-collect-period of %s measures %s", async (period, how) => {
  daemon.writeConfig({ "stats-collect-period": period });
  await daemon.restart();
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  const first = await statsOf(id);
  await daemon.exec(id, "ulimit -t 2; while :; do :; done", 100); // two seconds of CPU, however long they take
  await sleep(4_000); // idle: the last of short periods has no CPU, the only long one has that of the loop
  const isIdle = ({ cpu }: ContainerStats) => count(cpu!.usage_nano_cores) < 10_000_000n;
  const isMeasured = ({ writable_layer: layer }: ContainerStats) =>
    String(layer!.timestamp) !== String(first.writable_layer!.timestamp);
  if (how === "often")
    await until(
      () => statsOf(id),
      (now) => isIdle(now) && isMeasured(now),
    );
  else {
    const now = await statsOf(id);
    expect([isIdle(now), isMeasured(now)]).toEqual([false, false]);
  }
});
