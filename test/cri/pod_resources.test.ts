// Tests UpdatePodSandboxResources: it sets the limits of pod cgroups that the daemon owns, and only records
// those of a kubelet's.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { toLong } from "../../src/base/int64.ts";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { cgroupMounts } from "../../src/node/cgroup.ts";
import { failure } from "../expect.ts";
import { cgroupDriver, type Daemon, startDaemon } from "../harness.ts";
import { mib } from "./limits.ts";

const { version, roots } = cgroupMounts();

let daemon: Daemon;
beforeAll(async () => {
  daemon = await startDaemon({ network: false });
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

/** Memory limit and CPU quota of a pod's cgroup, by the kernel. */
function kernel(path: string): { memory: string; quota: string } {
  const read = (root: string, file: string) =>
    readFileSync(join(roots[root]!, path, file), "utf8").trim();
  if (version === 2) {
    return { memory: read("unified", "memory.max"), quota: read("unified", "cpu.max") };
  }
  const [quota, period] = ["quota", "period"].map((name) => read("cpu", `cpu.cfs_${name}_us`));
  return { memory: read("memory", "memory.limit_in_bytes"), quota: `${quota} ${period}` };
}

async function config(podId: string): Promise<string> {
  const status = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId, verbose: true });
  return Object.values(status.info).join();
}

test("of the daemon's own cgroup: set and updated", async () => {
  const pod = daemon.hostPodConfig();
  pod.linux!.resources = { memory_limit_in_bytes: mib(64), cpu_quota: toLong(20_000) };
  pod.linux!.overhead = { memory_limit_in_bytes: mib(8), cpu_quota: toLong(5_000) };
  const pod_sandbox_id = await daemon.runPod(pod);
  const name =
    cgroupDriver === "systemd" ? `${daemon.token}-pod${pod_sandbox_id}.slice` : pod_sandbox_id;
  const path = join(daemon.cgroupParent, name);
  // systemd makes the slice with its first scope.
  const id = await daemon.run(pod_sandbox_id, pod, ["sleep", "600"]);
  expect(kernel(path)).toEqual({ memory: String(72 << 20), quota: "25000 100000" });
  const resources = { memory_limit_in_bytes: mib(128), cpu_quota: toLong(-1) };
  await daemon.client.UpdatePodSandboxResources({ pod_sandbox_id, resources });
  const after = kernel(path);
  expect(after.memory).toBe(String(136 << 20));
  expect(after.quota).toMatch(/^(-1|max) /);
  await daemon.restart();
  expect(await config(pod_sandbox_id)).toContain(String(128 << 20));

  // Less than the container may have.
  const linux = { cpu_quota: toLong(60_000), cpu_period: toLong(100_000) };
  await daemon.client.UpdateContainerResources({ container_id: id, linux });
  const less = { memory_limit_in_bytes: mib(200), cpu_quota: toLong(1_000) };
  const overhead = { memory_limit_in_bytes: toLong(0) };
  const call = daemon.client.UpdatePodSandboxResources({
    pod_sandbox_id,
    resources: less,
    overhead,
  });
  if (version === 1) {
    const error = await failure(call);
    expect(error.code).toBe("FAILED_PRECONDITION");
    expect(error.message).toContain("cpu.cfs_quota_us");
    expect(kernel(path)).toEqual(after);
    expect(await config(pod_sandbox_id)).not.toContain(String(200 << 20));
  } else await call;

  if (cgroupDriver === "cgroupfs") {
    // Less than the kernel's least; systemd takes a shorter period.
    const tooLittle = { cpu_quota: toLong(500), cpu_period: toLong(100_000) };
    const request = { pod_sandbox_id, resources: tooLittle, overhead: { cpu_quota: toLong(0) } };
    const refused = await failure(daemon.client.UpdatePodSandboxResources(request));
    expect(refused.code).toBe("FAILED_PRECONDITION");
  }
  await daemon.removePod(pod_sandbox_id);
});

// With swap the kernel makes room instead.
const hasSwap = readFileSync("/proc/swaps", "utf8").trimEnd().includes("\n");
test.skipIf(version === 1 || hasSwap)(
  "of the daemon's own cgroup: a memory limit below what containers hold is refused",
  async () => {
    const pod = daemon.hostPodConfig();
    pod.linux!.resources = { memory_limit_in_bytes: mib(128) };
    const pod_sandbox_id = await daemon.runPod(pod);
    const id = await daemon.run(pod_sandbox_id, pod, ["sleep", "600"]);
    const file = `/dev/shm/held-${id}`;
    const { exitCode } = await daemon.exec(id, `dd if=/dev/zero of=${file} bs=1M count=24`, 120);
    expect(exitCode).toBe(0);
    const resources = { memory_limit_in_bytes: mib(20) };
    const update = () => daemon.client.UpdatePodSandboxResources({ pod_sandbox_id, resources });
    const { code, message } = await failure(update());
    expect([code, message]).toEqual(["FAILED_PRECONDITION", expect.stringContaining("OOM-killed")]);
    expect(await config(pod_sandbox_id)).not.toContain(String(20 << 20));
    expect((await daemon.exec(id, `rm ${file}`)).exitCode).toBe(0);
    await update();
    expect(await config(pod_sandbox_id)).toContain(String(20 << 20));
    await daemon.removePod(pod_sandbox_id);
  },
);

test("of a kubelet's cgroup: recorded, not applied", async () => {
  const pod = daemon.hostPodConfig();
  const parent = cgroupDriver === "systemd" ? `${daemon.token}-k.slice` : `/${daemon.token}/k`;
  pod.linux!.cgroup_parent = parent;
  const pod_sandbox_id = await daemon.runPod(pod);
  const resources = { memory_limit_in_bytes: mib(96) };
  if (cgroupDriver === "cgroupfs") {
    const before = kernel(parent);
    await daemon.client.UpdatePodSandboxResources({ pod_sandbox_id, resources });
    expect(kernel(parent)).toEqual(before);
  } else await daemon.client.UpdatePodSandboxResources({ pod_sandbox_id, resources });
  expect(await config(pod_sandbox_id)).toContain(String(96 << 20));

  // A pod without limits, and one with little CPU: the kubelet has subtracted its overhead of 250m and 120 MiB.
  const recorded = async (memory: number, quota: number) => {
    const resources = { memory_limit_in_bytes: toLong(memory), cpu_quota: toLong(quota) };
    await daemon.client.UpdatePodSandboxResources({ pod_sandbox_id, resources });
    const status = await daemon.client.PodSandboxStatus({ pod_sandbox_id, verbose: true });
    const info = JSON.parse(status.info["info"]!) as { config: PodSandboxConfig };
    return info.config.linux?.resources;
  };
  const none = { memory_limit_in_bytes: -1, cpu_quota: -1 };
  expect(await recorded(-125_829_121, -25_001)).toMatchObject(none);
  expect(await recorded(-1, 500)).toMatchObject({ ...none, cpu_quota: 500 });
  await daemon.restart();
  expect(await recorded(-1, 500)).toMatchObject({ ...none, cpu_quota: 500 });
  await daemon.client.StopPodSandbox({ pod_sandbox_id });
  const stopped = daemon.client.UpdatePodSandboxResources({ pod_sandbox_id, resources });
  expect((await failure(stopped)).code).toBe("FAILED_PRECONDITION");
  await daemon.removePod(pod_sandbox_id);
  const gone = daemon.client.UpdatePodSandboxResources({ pod_sandbox_id, resources });
  expect((await failure(gone)).code).toBe("NOT_FOUND");
});
