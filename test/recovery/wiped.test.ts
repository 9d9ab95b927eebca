// Tests a state folder that is emptied while the daemon runs, as by a program that tidies up /run: new pods,
// containers and execs work without a restart, and running ones go on and can be removed.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { existsSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { runtime } from "../../src/proto/messages.js";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { unmountUnder } from "../host.ts";
import { converse } from "../stream_client.ts";

let daemon: Daemon;
beforeAll(async () => {
  daemon = await startDaemon();
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

/** A pod and what it runs, from begin to end. */
async function life(): Promise<void> {
  const pod = daemon.podConfig();
  const podId = await daemon.runPod(pod);
  const { text, exitCode } = await daemon.output(podId, pod, "echo new; exit 3");
  expect({ text, exitCode }).toEqual({ text: "new\n", exitCode: 3 });
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  expect((await daemon.exec(id, "echo alive")).stdout).toBe("alive\n");
  const cmd = ["echo", "streamed"];
  const { url } = await daemon.client.Exec({ container_id: id, cmd, stdout: true });
  const conversation = await converse(url, { stdout: true });
  expect((await conversation.end).stdout).toBe("streamed\n");
  await daemon.removePod(podId);
}

test("without the folder of changes pods are made, and their changes outlive kill -9", async () => {
  rmSync(join(daemon.dir, "state/records"), { recursive: true });
  await life();
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const { id } = await daemon.output(podId, pod, "exit 3");
  expect(readdirSync(join(daemon.dir, "state/records"))).toContain(`container-${id}.json`);
  await daemon.restart("SIGKILL");
  expect((await daemon.exited(id)).exitCode).toBe(3);
  await daemon.removePod(podId);
});

test("after a wipe of all of it what ran goes on, and new pods are made without a restart", async () => {
  const before = daemon.snapshot();
  const pod = daemon.podConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, "sleep 600; true");
  const state = join(daemon.dir, "state");
  unmountUnder(state);
  for (const name of readdirSync(state)) rmSync(join(state, name), { recursive: true });
  await until("the monitor has its folder again", () => readdirSync(state).includes("monitor"));
  await life();
  // The runtime knows nothing of it any more, but it runs; also for the next daemon.
  const settled = [`sandboxes/${podId}/sandbox`, `containers/${id}/container`];
  for (const name of settled) {
    const file = join(daemon.dir, "graph", `${name}.settled.json`);
    await until(`${file} is there`, () => existsSync(file));
  }
  await daemon.restart("SIGKILL");
  const { status } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId });
  expect(status?.network?.ip).toStartWith(daemon.subnet);
  expect((await daemon.status(id)).state).toBe(runtime.v1.ContainerState.CONTAINER_RUNNING);
  await daemon.removePod(podId);
  // Another daemon has other descriptors.
  const leaks = (await daemon.leaksSince(before)).filter((leak) => !leak.startsWith("descriptor"));
  expect(leaks).toEqual([]);
});
