// Tests that conflicting concurrent calls leak nothing, whatever their order.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { setTimeout as sleep } from "node:timers/promises";
import { runtime } from "../../src/proto/messages.js";
import { codeOf } from "../../src/base/errors.ts";
import { type Daemon, startDaemon } from "../harness.ts";

const { ContainerState } = runtime.v1;

let daemon: Daemon;
beforeAll(async () => {
  daemon = await startDaemon();
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

describe("a sandbox that is being removed", () => {
  test.each([0, 20, 40, 60])(
    "StopPodSandbox %i ms after StartContainer leaves nothing running",
    async (delayMs) => {
      const pod = daemon.hostPodConfig();
      const podId = await daemon.runPod(pod);
      const id = await daemon.create(podId, pod, ["sleep", "600"]);
      const started = daemon.client.StartContainer({ container_id: id }).catch(() => {});
      await sleep(delayMs);
      await daemon.client.StopPodSandbox({ pod_sandbox_id: podId });
      await started;
      expect((await daemon.status(id)).state).not.toBe(ContainerState.CONTAINER_RUNNING);
      await daemon.removePod(podId);
    },
  );

  test("RemovePodSandbox during CreateContainer leaves no container", async () => {
    const before = daemon.snapshot();
    for (const delayMs of [0, 0, 1, 3]) {
      const pod = daemon.hostPodConfig();
      const podId = await daemon.runPod(pod);
      const made = [1, 2, 3].map(() => daemon.create(podId, pod, "true").catch(() => {}));
      await sleep(delayMs);
      await daemon.client.RemovePodSandbox({ pod_sandbox_id: podId });
      await Promise.all(made);
    }
    expect((await daemon.client.ListContainers({})).containers).toEqual([]);
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test("repeated concurrent Stop and Remove all succeed", async () => {
    const before = daemon.snapshot();
    const pod = daemon.podConfig();
    const request = { pod_sandbox_id: await daemon.runPod(pod) };
    await daemon.run(request.pod_sandbox_id, pod, ["sleep", "600"]);
    const { client } = daemon;
    const calls = ["StopPodSandbox", "StopPodSandbox", "RemovePodSandbox", "RemovePodSandbox"];
    await Promise.all(calls.map((name) => client[name as "StopPodSandbox"](request)));
    expect(await daemon.leaksSince(before)).toEqual([]);
  });
});

describe("a RunPodSandbox whose client has gone", () => {
  test.each([1, 5, 15, 30, 60])(
    "after %i ms leaves nothing, and a repeated one is served",
    async (timeoutMs) => {
      const before = daemon.snapshot();
      const config = daemon.podConfig();
      const request = { config, runtime_handler: "" };
      const first = await daemon.client.RunPodSandbox(request, { timeoutMs }).catch(codeOf);
      if (typeof first === "string") expect(first).toBe("DEADLINE_EXCEEDED");
      // It may have passed after the last look at the deadline: then it is listed under its name.
      const second = await daemon.runPod(config).catch(codeOf);
      const { items } = await daemon.client.ListPodSandbox({});
      expect(items.map(({ metadata }) => metadata!.name)).toEqual([config.metadata!.name!]);
      const podId = items[0]!.id!;
      expect([podId, "ALREADY_EXISTS"]).toContain(second);
      await daemon.removePod(podId);
      expect(await daemon.leaksSince(before)).toEqual([]);
    },
  );
});
