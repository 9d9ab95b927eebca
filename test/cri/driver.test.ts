// Tests that the cgroup driver can change only when no cgroup of the other driver is left.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { runtime } from "../../src/proto/messages.js";
import { failure } from "../expect.ts";
import { cgroupDriver, type Daemon, executable, startDaemon } from "../harness.ts";

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
  return (await started).split("\n").findLast((line) => line.includes("cgroup driver")) ?? "";
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
  if (systemdRuns || isSystemd) {
    await restartWith(other);
    expect(await driver()).toBe(isSystemd ? "cgroupfs" : "systemd");
  } else expect(await refusal()).toContain("systemd is not the init of this host");
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

/** Has a stopped daemon's record say that systemd's driver has made the pod, as an earlier build let it. */
function makeSystemds(podId: string): void {
  const files = [
    join(daemon.dir, "graph/sandboxes", podId, "sandbox.json"),
    join(daemon.dir, "graph/sandboxes", podId, "sandbox.settled.json"),
    join(daemon.dir, `state/records/sandbox-${podId}.json`),
  ];
  for (const file of files.filter((path) => existsSync(path))) {
    const text = readFileSync(file, "utf8");
    writeFileSync(file, text.replaceAll('"driver":"cgroupfs"', '"driver":"systemd"'));
  }
}

describe.skipIf(systemdRuns)("pods of systemd's driver on a host without systemd", () => {
  test.each([
    [
      "are removed under that driver, which starts no others",
      { "systemd-cgroup": true, "cgroup-parent": "" },
    ],
    ["end under the corrected driver, which starts others", own],
  ])("%s", async (_, config) => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    await daemon.stop();
    makeSystemds(podId);
    daemon.writeConfig(config);
    await daemon.start();
    const { status } = await daemon.client.Status({});
    const ready = status!.conditions!.find(({ type }) => type === "RuntimeReady")!;
    if (config === own) {
      expect(ready.status).toBe(true);
      const { status } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId });
      expect(status!.state).toBe(runtime.v1.PodSandboxState.SANDBOX_NOTREADY);
    } else {
      expect([ready.status, ready.reason]).toEqual([false, "CgroupDriverUnusable"]);
      const { code, message } = await failure(daemon.runPod(daemon.hostPodConfig()));
      expect(code).toBe("FAILED_PRECONDITION");
      expect(message).toContain('set "systemd-cgroup": "auto"');
    }
    await daemon.removePod(podId);
    const { items } = await daemon.client.ListPodSandbox({});
    expect(items).toEqual([]);
    await restartWith(own);
    await daemon.removePod(await daemon.runPod(daemon.hostPodConfig()));
  });
});

test.skipIf(isSystemd)(
  "a parent that is a slice of systemd starts, with one warning for all pods",
  async () => {
    const pods = [1, 2].map((number) =>
      daemon.hostPodConfig({ metadata: { name: `sliced-${number}` } }),
    );
    for (const pod of pods) {
      pod.linux!.cgroup_parent = `kubepods-burstable-pod${daemon.token}.slice`;
      const podId = await daemon.runPod(pod);
      await daemon.run(podId, pod, ["sleep", "600"]);
      const { exitCode, stdout } = Bun.spawnSync([
        executable,
        "why",
        "--host",
        `unix://${daemon.socket}`,
        `test/${pod.metadata!.name}`,
      ]);
      expect([exitCode, stdout.toString()]).toEqual([
        0,
        expect.stringMatching(/warning: cgroup parent\s/),
      ]);
    }
    expect(daemon.log.match(/the kubelet has another cgroup driver/g)).toHaveLength(1);
    const { items } = await daemon.client.ListPodSandbox({});
    for (const { id } of items) await daemon.removePod(id!);
  },
);
