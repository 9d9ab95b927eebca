// Tests the verbose statuses of pods and containers: agents on nodes read them as containerd's.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { toLong } from "../../src/base/int64.ts";
import { runtime } from "../../src/proto/messages.js";
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
  const linux = { resources, security_context: { namespace_options } };
  const pod_sandbox_id = await daemon.runPod(daemon.podConfig({ linux }));
  const status = await daemon.client.PodSandboxStatus({ pod_sandbox_id, verbose: true });
  const info = status.info["info"]!;
  expect(info).toContain(`"memory_limit_in_bytes":${exact}`);
  expect(JSON.parse(info)).toMatchObject({
    config: { linux: { security_context: { namespace_options } } },
    cniResult: { Interfaces: { eth0: { IPConfigs: [{ IP: status.status!.network!.ip }] } } },
    runtimeHandler: "",
    runtimeType: "runc",
  });
  await daemon.removePod(pod_sandbox_id);
});

test("a pod with the node's network has no result of CNI", async () => {
  const pod_sandbox_id = await daemon.runPod(daemon.hostPodConfig());
  const { info } = await daemon.client.PodSandboxStatus({ pod_sandbox_id, verbose: true });
  expect(JSON.parse(info["info"]!)).toHaveProperty("cniResult", null);
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
  await daemon.removePod(podId);
});
