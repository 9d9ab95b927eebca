// Tests that the cgroup driver can change only when no cgroup of the other driver is left.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { runtime } from "../../src/proto/messages.js";
import { cgroupDriver, type Daemon, startDaemon } from "../harness.ts";

const { CgroupDriver } = runtime.v1;
const systemdRuns = existsSync("/run/systemd/system");
const isSystemd = cgroupDriver === "systemd";
const own = { "systemd-cgroup": isSystemd };
const other = { "systemd-cgroup": !isSystemd, "cgroup-parent": "" };

let daemon: Daemon;
beforeAll(async () => {
  daemon = await startDaemon();
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

async function restartWith(config: Record<string, unknown>): Promise<void> {
  await daemon.stop();
  daemon.writeConfig(config);
  await daemon.start();
}

/** The daemon's error when it does not start. */
async function refusal(): Promise<string> {
  const started = restartWith(other).then(() => "it started", String);
  return (await started).split("\n").findLast((line) => line.includes("the cgroup driver")) ?? "";
}

async function driver(): Promise<string> {
  const { linux } = await daemon.client.RuntimeConfig({});
  return CgroupDriver[linux!.cgroup_driver!].toLowerCase();
}

test("with containers left, another driver is refused with their names, and nothing changes", async () => {
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  const message = await refusal();
  expect(message).toContain(`container ${id.slice(0, 12)} (`);
  expect(message).toContain(`pod ${podId.slice(0, 12)} (${pod.metadata!.name}_`);
  expect(message).toContain(`Start with "systemd-cgroup": ${isSystemd}, drain the node`);
  await restartWith(own);
  expect((await daemon.exec(id, ["echo", "alive"])).stdout).toBe("alive\n");
  await daemon.client.StopPodSandbox({ pod_sandbox_id: podId });
  // A stopped container may still have its cgroup.
  expect(await refusal()).toContain(podId.slice(0, 12));
  await restartWith(own);
  await daemon.removePod(podId);
});

test("with none left it switches, and back", async () => {
  await restartWith(other);
  expect(await driver()).toBe(isSystemd ? "cgroupfs" : "systemd");
  if (systemdRuns) {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const { text } = await daemon.output(podId, pod, "echo ran");
    expect(text).toBe("ran\n");
    await daemon.removePod(podId);
  }
  await restartWith({ "systemd-cgroup": "auto", "cgroup-parent": "" });
  expect(await driver()).toBe(systemdRuns ? "systemd" : "cgroupfs");
  await restartWith(own);
  expect(await driver()).toBe(cgroupDriver);
});
