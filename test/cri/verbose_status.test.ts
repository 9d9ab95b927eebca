// Tests the verbose statuses of pods and containers: agents on nodes read them as containerd's.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { hostname } from "node:os";
import { toLong } from "../../src/base/int64.ts";
import { runtime } from "../../src/proto/messages.js";
import { failure } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";

const { NamespaceMode } = runtime.v1;
/** More digits than a number of JavaScript has. */
const exact = 2n ** 60n + 1n;

let daemon: Daemon;
beforeAll(async () => {
  daemon = await startDaemon();
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

test("a pod's has addresses by interface, its runtime, and numbers that Go's types take", async () => {
  const namespace_options = { pid: NamespaceMode.CONTAINER };
  const resources = { memory_limit_in_bytes: toLong(exact) };
  const overhead = { cpu_quota: toLong(5_000), cpu_period: toLong(100_000) };
  const linux = { overhead, resources, security_context: { namespace_options } };
  const pod_sandbox_id = await daemon.runPod(daemon.podConfig({ linux }));
  const status = await daemon.client.PodSandboxStatus({ pod_sandbox_id, verbose: true });
  const info = status.info["info"]!;
  expect(info).toContain(`"memory_limit_in_bytes":${exact}`);
  expect(JSON.parse(info)).toMatchObject({
    config: { linux: { security_context: { namespace_options } } },
    overhead: { cpu_quota: 5_000, cpu_period: 100_000 },
    resources: { memory_limit_in_bytes: expect.any(Number) },
    cniResult: { Interfaces: { eth0: { IPConfigs: [{ IP: status.status!.network!.ip }] } } },
    runtimeHandler: "",
    runtimeType: "runc",
  });
  const update = { cpu_shares: toLong(700) };
  await daemon.client.UpdatePodSandboxResources({ pod_sandbox_id, resources: update });
  const updated = await daemon.client.PodSandboxStatus({ pod_sandbox_id, verbose: true });
  expect(JSON.parse(updated.info["info"]!)).toMatchObject({
    overhead: { cpu_quota: 5_000 },
    resources: { cpu_shares: 700 },
  });
  await daemon.removePod(pod_sandbox_id);
});

test("a pod with the node's network has no result of CNI, and without a process it has no pid", async () => {
  const pod_sandbox_id = await daemon.runPod(daemon.hostPodConfig());
  const { info } = await daemon.client.PodSandboxStatus({ pod_sandbox_id, verbose: true });
  const known = JSON.parse(info["info"]!) as object;
  expect(known).toMatchObject({ cniResult: null, overhead: null, resources: null });
  expect(known).not.toHaveProperty("pid");
  await daemon.removePod(pod_sandbox_id);
});

test("a container's has its runtime, and numbers that Go's types take", async () => {
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const linux = { resources: { cpu_shares: toLong(512) } };
  const container_id = await daemon.create(podId, pod, ["sleep", "600"], { linux });
  const { info } = await daemon.client.ContainerStatus({ container_id, verbose: true });
  expect(JSON.parse(info["info"]!)).toMatchObject({
    sandboxID: podId,
    config: { linux: { resources: { cpu_shares: 512 } } },
    runtimeType: "runc",
  });
  // `kill -9 0` would kill the caller's own process group.
  const pid = async () => {
    const { info } = await daemon.client.ContainerStatus({ container_id, verbose: true });
    return (JSON.parse(info["info"]!) as { pid?: number }).pid;
  };
  expect(await pid()).toBeUndefined();
  await daemon.client.StartContainer({ container_id });
  expect(await pid()).toBeGreaterThan(0);
  await daemon.client.StopContainer({ container_id, timeout: toLong(0) });
  expect(await pid()).toBeUndefined();
  await daemon.removePod(podId);
});

test.each(["a/b", "../../etc", "TestPod/with_a_subtest"])(
  "a pod and a container may be named %s",
  async (name) => {
    const pod = daemon.hostPodConfig({ metadata: { name, namespace: "n/s", uid: "u/1" } });
    pod.log_directory = `${daemon.dir}/logs/slashes`;
    const podId = await daemon.runPod(pod);
    const id = await daemon.run(podId, pod, ["sleep", "600"], {
      metadata: { name },
      log_path: "0.log",
    });
    expect((await daemon.status(id)).metadata!.name).toBe(name);
    const { status } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId });
    expect(status!.metadata).toMatchObject({ name, namespace: "n/s", uid: "u/1" });
    await daemon.removePod(podId);
  },
);

test("a pod in the node's network has the node's hostname, and no other one is accepted", async () => {
  const pod = daemon.hostPodConfig();
  for (const name of ["other", `${hostname()}.`, hostname().toUpperCase() + "X"]) {
    const error = await failure(daemon.runPod({ ...pod, hostname: name }));
    expect(`${error.code}: ${error.message}`).toMatch(/^INVALID_ARGUMENT: .*hostname/);
  }
  const own = { ...pod, hostname: hostname() };
  const podId = await daemon.runPod(own);
  const script = "hostname; cat /etc/hostname; echo $HOSTNAME";
  const { text } = await daemon.output(podId, own, script);
  expect(text).toBe(`${hostname()}\n`.repeat(3));
  await daemon.removePod(podId);
});
