// Tests that lists are ordered newest first, also after a restart. A kubelet with Evented PLEG takes the
// first container of a name in a pod's status for the newest attempt.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { runtime } from "../../src/proto/messages.js";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { busyboxImage } from "../image_maker.ts";

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
/** Newest first. */
const attempts: string[] = [];
const pods: string[] = [];

beforeAll(async () => {
  daemon = await startDaemon({ config: { "enable-pod-events": true }, network: false });
  for (const number of [1, 2, 3, 4]) {
    await daemon.loadImage(busyboxImage({ Env: [`N=${number}`] }), `example.test/n:${number}`);
  }
  for (let number = 0; number < 5; number++)
    pods.unshift(await daemon.runPod(daemon.hostPodConfig()));
  pod = daemon.hostPodConfig({ metadata: { name: "crashing" } });
  podId = await daemon.runPod(pod);
  pods.unshift(podId);
  for (let attempt = 0; attempt < 6; attempt++) {
    const metadata = { name: "app", attempt };
    const id = await daemon.run(podId, pod, attempt < 5 ? "exit 3" : "sleep 600", { metadata });
    if (attempt < 5) await daemon.exited(id);
    attempts.unshift(id);
  }
}, 120_000);
afterAll(() => daemon?.[Symbol.asyncDispose]());

/** Every list that a client can ask for, by its ids. */
async function lists() {
  const { client } = daemon;
  const status = await client.PodSandboxStatus({ pod_sandbox_id: podId });
  return {
    statuses: status.containers_statuses.map(({ id }) => id),
    containers: (await client.ListContainers({})).containers.map(({ id }) => id),
    sandboxes: (await client.ListPodSandbox({})).items.map(({ id }) => id),
    images: (await client.ListImages({})).images.map(({ id }) => id),
    stats: (await client.ListContainerStats({})).stats.map((one) => one.attributes!.id),
    podStats: (await client.ListPodSandboxStats({})).stats.map((one) => one.attributes!.id),
  };
}

describe("newest first", () => {
  test("in a pod's status and in the lists", async () => {
    const { statuses, containers, sandboxes } = await lists();
    expect(statuses).toEqual(attempts);
    expect(containers).toEqual(attempts);
    expect(sandboxes).toEqual(pods);
  });

  test("in an event's statuses", async () => {
    const abort = new AbortController();
    const seen: runtime.v1.ContainerEventResponse[] = [];
    const listening = (async () => {
      for await (const event of daemon.client.GetContainerEvents({}, { signal: abort.signal })) {
        seen.push(event);
      }
    })().catch(() => {});
    let event: runtime.v1.ContainerEventResponse | undefined;
    await until("an event comes", async () => {
      const metadata = { name: `other-${performance.now()}` };
      const id = await daemon.create(podId, pod, "exit 0", { metadata });
      await daemon.client.RemoveContainer({ container_id: id });
      // The subscription may begin between its creation and its removal.
      event = seen.find(
        ({ container_id, container_event_type: type }) =>
          container_id === id && type === runtime.v1.ContainerEventType.CONTAINER_CREATED_EVENT,
      );
      return event !== undefined;
    });
    expect(event!.containers_statuses.map(({ id }) => id)).toEqual([
      event!.container_id,
      ...attempts,
    ]);
    abort.abort();
    await listening;
  });
});

test("all lists have the same order after the daemon was killed and started again", async () => {
  const before = await lists();
  expect(before.images).toHaveLength(5);
  for (let round = 0; round < 2; round++) {
    await daemon.restart("SIGKILL");
    expect(await lists()).toEqual(before);
  }
});
