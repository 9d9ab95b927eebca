// Tests that List and Stream calls return equal items, filter them, accept id prefixes and bound their
// messages.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { runtime } from "../../src/proto/messages.js";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { failure } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";

const { ContainerState, PodSandboxState } = runtime.v1;

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
let otherPodId: string;
let ids: string[];
beforeAll(async () => {
  daemon = await startDaemon();
  pod = daemon.hostPodConfig({ labels: { app: "one" } });
  const other = daemon.hostPodConfig({ labels: { app: "two", tier: "x" } });
  podId = await daemon.runPod(pod);
  otherPodId = await daemon.runPod(other);
  ids = [
    await daemon.create(podId, pod, ["sleep", "600"], { labels: { app: "a", tier: "x" } }),
    await daemon.run(podId, pod, ["sleep", "600"], { labels: { app: "b", tier: "x" } }),
    await daemon.create(otherPodId, other, ["sleep", "600"], { labels: { app: "a" } }),
  ];
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

async function all<Message, Item>(
  stream: AsyncIterable<Message>,
  itemsOf: (message: Message) => Item[],
): Promise<Item[][]> {
  const batches: Item[][] = [];
  for await (const message of stream) batches.push(itemsOf(message));
  return batches;
}

const listed = async (filter?: runtime.v1.ContainerFilter.$Properties) =>
  (await daemon.client.ListContainers({ filter })).containers;
const streamed = (filter?: runtime.v1.ContainerFilter.$Properties) =>
  all(daemon.client.StreamContainers({ filter }), (message) => message.containers);
const idsOf = (items: { id?: string | null }[]) => items.map(({ id }) => id!).sort();

describe("containers", () => {
  test.each([
    ["nothing", () => undefined, [0, 1, 2]],
    ["an id", () => ({ id: ids[1]! }), [1]],
    ["the start of an id", () => ({ id: ids[1]!.slice(0, 20) }), [1]],
    ["an unknown id", () => ({ id: "0badf00d" }), []],
    ["a pod", () => ({ pod_sandbox_id: podId }), [0, 1]],
    ["the start of a pod's id", () => ({ pod_sandbox_id: otherPodId.slice(0, 20) }), [2]],
    ["an unknown pod", () => ({ pod_sandbox_id: "0badf00d" }), []],
    ["a state", () => ({ state: { state: ContainerState.CONTAINER_RUNNING } }), [1]],
    ["the state that is 0", () => ({ state: { state: ContainerState.CONTAINER_CREATED } }), [0, 2]],
    ["labels", () => ({ label_selector: { app: "a", tier: "x" } }), [0]],
    ["a pod and a label", () => ({ pod_sandbox_id: podId, label_selector: { tier: "x" } }), [0, 1]],
    ["an id of another pod", () => ({ id: ids[2]!, pod_sandbox_id: podId }), []],
  ])("List and Stream filter by %s", async (_what, filter, wanted) => {
    const expected = wanted.map((index) => ids[index]!).sort();
    expect(idsOf(await listed(filter()))).toEqual(expected);
    const batches = await streamed(filter());
    expect(idsOf(batches.flat())).toEqual(expected);
    expect(batches.length).toBe(expected.length === 0 ? 0 : 1);
  });

  test("an ambiguous id is refused by List and Stream", async () => {
    const prefix = ids[0]!.slice(0, 1);
    const same = [...ids];
    while (same.filter((id) => id.startsWith(prefix)).length < 2) {
      same.push(await daemon.create(podId, pod, ["true"]));
    }
    for (const call of [listed({ id: prefix }), streamed({ id: prefix })]) {
      const error = await failure(call);
      expect(error.code).toBe("INVALID_ARGUMENT");
      expect(error.message).toContain("ambiguous");
    }
    for (const id of same.slice(3)) await daemon.client.RemoveContainer({ container_id: id });
  });

  test("a list shows each change at once", async () => {
    const id = await daemon.create(podId, pod, ["sleep", "600"]);
    const state = async () => (await listed({ id }))[0]?.state;
    expect(await state()).toBe(ContainerState.CONTAINER_CREATED);
    await daemon.client.StartContainer({ container_id: id });
    expect(await state()).toBe(ContainerState.CONTAINER_RUNNING);
    await daemon.client.StopContainer({ container_id: id });
    expect(await state()).toBe(ContainerState.CONTAINER_EXITED);
    await daemon.client.RemoveContainer({ container_id: id });
    expect(await state()).toBeUndefined();
  });

  test("a list too large for one message comes in several, each item once", async () => {
    const annotations = { much: "x".repeat(400_000) };
    const large: string[] = [];
    for (let count = 0; count < 6; count++) {
      large.push(await daemon.create(podId, pod, ["true"], { annotations }));
    }
    const batches = await streamed({ pod_sandbox_id: podId });
    expect(batches.length).toBe(3);
    expect(idsOf(batches.flat())).toEqual(idsOf(await listed({ pod_sandbox_id: podId })));
    const oneLess = await streamed({ id: large[0]! });
    expect(oneLess[0]![0]!.annotations!["much"]).toHaveLength(400_000);
    for (const id of large) await daemon.client.RemoveContainer({ container_id: id });
  });
});

test("pods: List and Stream filter by id, state and labels", async () => {
  const both = async (filter?: runtime.v1.PodSandboxFilter.$Properties) => {
    const { items } = await daemon.client.ListPodSandbox({ filter });
    const stream = daemon.client.StreamPodSandboxes({ filter });
    const batches = await all(stream, (message) => message.pod_sandboxes);
    expect(batches.flat()).toEqual(items);
    return idsOf(items);
  };
  expect(await both()).toEqual([podId, otherPodId].sort());
  expect(await both({ id: podId.slice(0, 16) })).toEqual([podId]);
  expect(await both({ id: "0badf00d" })).toEqual([]);
  expect(await both({ label_selector: { app: "two" } })).toEqual([otherPodId]);
  expect(await both({ state: { state: PodSandboxState.SANDBOX_NOTREADY } })).toEqual([]);
  await daemon.client.StopPodSandbox({ pod_sandbox_id: otherPodId });
  expect(await both({ state: { state: PodSandboxState.SANDBOX_NOTREADY } })).toEqual([otherPodId]);
  expect(await both({ state: { state: PodSandboxState.SANDBOX_READY } })).toEqual([podId]);
});

test("images: Stream sends the items of List", async () => {
  const { images } = await daemon.client.ListImages({});
  const batches = await all(daemon.client.StreamImages({}), (message) => message.images);
  expect(batches.flat()).toEqual(images);
  const filter = { image: { image: "docker.io/library/nothing:latest" } };
  expect(await all(daemon.client.StreamImages({ filter }), (message) => message.images)).toEqual(
    [],
  );
});
