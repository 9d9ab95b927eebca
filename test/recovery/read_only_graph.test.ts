// Tests a daemon whose disk becomes read-only, as ext4 does after an error: what runs goes on and can be stopped.
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { expect, test } from "bun:test";
import { toLong } from "../../src/base/int64.ts";
import { runtime } from "../../src/proto/messages.js";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { failure, until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";

const { NamespaceMode, ContainerState, PodSandboxState } = runtime.v1;

/** Which a log thread of the monitor reads. */
const longOutput = "head -c 60000 /dev/zero; echo end >&2";

function mountCommand(program: "mount" | "umount", ...args: string[]): void {
  const { status, stderr } = spawnSync(program, args, { encoding: "utf8" });
  if (status !== 0) throw new Error(`${program} ${args.join(" ")}: ${stderr}`);
}

async function runtimeReady(daemon: Daemon) {
  const { status } = await daemon.client.Status({});
  const condition = status!.conditions!.find(({ type }) => type === "RuntimeReady");
  return { status: condition?.status === true, reason: condition?.reason };
}

/** Covers a folder with a read-only view of it. Remounting it would fail, since the daemon's lock is open for writing. */
function coverReadOnly(folder: string): void {
  mountCommand("mount", "--rbind", folder, folder);
  mountCommand("mount", "--make-rprivate", folder);
  mountCommand("mount", "-o", "remount,bind,ro", folder);
}

function uncover(folder: string): void {
  mountCommand("umount", "--recursive", "--lazy", folder);
}

/** Stop of containers and pods works, twice; what makes or removes something is refused with the reason. */
async function whileReadOnly(daemon: Daemon, pod: PodSandboxConfig, podId: string, id: string) {
  const { exitCode, stdout } = await daemon.exec(id, longOutput);
  expect([exitCode, stdout.length]).toEqual([0, 60_000]);
  for (const refused of [
    daemon.runPod(daemon.hostPodConfig()),
    daemon.create(podId, pod, "true"),
  ]) {
    const { code, message } = await failure(refused);
    expect(code).toBe("FAILED_PRECONDITION");
    expect(message).toMatch(/read-only.*mount it read-write/);
  }
  await daemon.client.StopContainer({ container_id: id, timeout: toLong(0) });
  expect((await daemon.status(id)).state).toBe(ContainerState.CONTAINER_EXITED);
  for (let time = 0; time < 2; time++)
    await daemon.client.StopPodSandbox({ pod_sandbox_id: podId });
  const { status } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId });
  expect(status!.state).toBe(PodSandboxState.SANDBOX_NOTREADY);
  await failure(daemon.client.RemovePodSandbox({ pod_sandbox_id: podId }));
}

test("a graph that becomes read-only stops no pod, is told in words, and clears by itself", async () => {
  await using daemon = await startDaemon();
  const graph = join(daemon.dir, "graph");
  const first = daemon.podConfig();
  const firstId = await daemon.runPod(first);
  await daemon.exec(await daemon.run(firstId, first, ["sleep", "600"]), longOutput);
  await daemon.removePod(firstId);
  const before = daemon.snapshot(); // what the first of each leaves for the next ones is no leak
  const linux = (pid: runtime.v1.NamespaceMode) => ({
    security_context: { namespace_options: { network: NamespaceMode.POD, pid } },
  });
  const configs = [
    daemon.podConfig(),
    daemon.hostPodConfig(),
    daemon.podConfig({ linux: linux(NamespaceMode.POD) }), // with a pause container
    daemon.podConfig(),
  ];
  const pods = await Promise.all(
    configs.map(async (pod) => {
      const podId = await daemon.runPod(pod);
      return { pod, podId, id: await daemon.run(podId, pod, ["sleep", "600"]) };
    }),
  );
  coverReadOnly(graph);
  let isCovered = true;
  try {
    await until("RuntimeReady is false", async () => !(await runtimeReady(daemon)).status);
    expect(await runtimeReady(daemon)).toMatchObject({ reason: "GraphReadOnly" });
    for (const { pod, podId, id } of pods.slice(0, 3)) await whileReadOnly(daemon, pod, podId, id);

    await daemon.restart();
    expect(await runtimeReady(daemon)).toMatchObject({ status: false, reason: "GraphReadOnly" });
    const { items } = await daemon.client.ListPodSandbox({});
    expect(new Set(items.map(({ id }) => id))).toEqual(new Set(pods.map(({ podId }) => podId)));
    const { pod, podId, id } = pods[3]!;
    await whileReadOnly(daemon, pod, podId, id);

    uncover(graph);
    isCovered = false;
    await until("RuntimeReady is true", async () => (await runtimeReady(daemon)).status);
    for (const { podId } of pods) await daemon.client.RemovePodSandbox({ pod_sandbox_id: podId });
    await daemon.removePod(await daemon.runPod(daemon.podConfig()));
    expect(await daemon.leaksSince(before)).toEqual([]);
  } finally {
    if (isCovered) uncover(graph);
  }
});
