// Tests which events GetContainerEvents sends, in which order, and with which statuses.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { toBigInt } from "../../src/base/int64.ts";
import { connect } from "../../src/cli/client.ts";
import { runtime } from "../../src/proto/messages.js";
import { failure, testMs, until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";

const { ContainerEventType, ContainerState, PodSandboxState } = runtime.v1;
type Event = runtime.v1.ContainerEventResponse;

let daemon: Daemon;
beforeAll(async () => {
  daemon = await startDaemon({ config: { "enable-pod-events": true } });
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

/** Subscribes; `until` waits for an event and returns all up to it. */
function listen(client = daemon.client) {
  const abort = new AbortController();
  const seen: Event[] = [];
  const end = (async () => {
    try {
      for await (const event of client.GetContainerEvents({}, { signal: abort.signal })) {
        seen.push(event);
      }
    } catch (error) {
      return error as { code: string; message: string };
    }
  })();
  return {
    seen,
    end,
    async until(id: string, type: string): Promise<Event[]> {
      const wanted = (event: Event) => event.container_id === id && nameOf(event) === type;
      await until(`${type} of ${id} is told`, () => seen.some(wanted));
      return seen.slice(0, seen.findIndex(wanted) + 1);
    },
    [Symbol.dispose]: () => abort.abort(),
  };
}

function nameOf({ container_event_type }: Event): string {
  return ContainerEventType[container_event_type].replace(/^CONTAINER_|_EVENT$/g, "");
}

test("without enable-pod-events it is UNIMPLEMENTED, so that a kubelet polls", async () => {
  await using own = await startDaemon({ network: false, image: false });
  const call = (async () => {
    for await (const _ of own.client.GetContainerEvents({}));
  })();
  expect(await failure(call)).toMatchObject({
    code: "UNIMPLEMENTED",
    message: expect.stringContaining("enable-pod-events"),
  });
});

test("a container that is removed while it runs stops first, however late its exit is committed", async () => {
  const failpoints = "before:container-exited=delay:1000";
  await using own = await startDaemon({
    config: { "enable-pod-events": true },
    flags: ["--allow-failpoints"],
    env: { ISULAD_FAILPOINTS: failpoints },
  });
  using events = listen(own.client);
  const pod = own.hostPodConfig();
  const id = await own.run(await own.runPod(pod), pod, ["sleep", "600"]);
  await own.client.RemoveContainer({ container_id: id });
  const seen = await events.until(id, "DELETED");
  const told = seen.filter(({ container_id }) => container_id === id);
  expect(told.map(nameOf)).toEqual(["CREATED", "STARTED", "STOPPED", "DELETED"]);
  expect(told[2]!.containers_statuses).toMatchObject([{ id, exit_code: 137 }]);
});

describe("the life of a pod", () => {
  test("each step once, in order, with the statuses of the whole pod as of its commit", async () => {
    using events = listen();
    const pod = daemon.podConfig();
    const podId = await daemon.runPod(pod);
    const other = await daemon.create(podId, pod, "true");
    const id = await daemon.run(podId, pod, "sleep 0.3; exit 3");
    await daemon.exited(id);
    await daemon.client.RemoveContainer({ container_id: id });
    await daemon.removePod(podId);
    const seen = await events.until(podId, "DELETED");
    const told = seen.map((event) => {
      const statuses = event.containers_statuses as runtime.v1.ContainerStatus[];
      const states = statuses.map(({ id: one, state }) => `${one} ${ContainerState[state]}`);
      const { state } = event.pod_sandbox_status as runtime.v1.PodSandboxStatus;
      return [event.container_id, nameOf(event), PodSandboxState[state], ...states.toSorted()];
    });
    const [ready, notReady] = ["SANDBOX_READY", "SANDBOX_NOTREADY"];
    const unstarted = `${other} CONTAINER_CREATED`;
    const both = (state: string) => [unstarted, `${id} ${state}`].toSorted();
    expect(told).toEqual([
      [podId, "CREATED", ready],
      [podId, "STARTED", ready],
      [other, "CREATED", ready, unstarted],
      [id, "CREATED", ready, ...both("CONTAINER_CREATED")],
      [id, "STARTED", ready, ...both("CONTAINER_RUNNING")],
      [id, "STOPPED", ready, ...both("CONTAINER_EXITED")],
      [id, "DELETED", ready, unstarted],
      [podId, "STOPPED", notReady, unstarted],
      [other, "DELETED", notReady],
      [podId, "DELETED", notReady],
    ]);
    const stopped = seen[5]!.containers_statuses.find((status) => status.id === id);
    expect(stopped).toMatchObject({ exit_code: 3, reason: "Error" });
    expect(seen[1]!.pod_sandbox_status?.network?.ip).toStartWith(daemon.subnet);
  });

  test("a container that ends at once starts and stops; one that cannot start only stops", async () => {
    using events = listen();
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const quick = await daemon.run(podId, pod, ["true"]);
    const never = await daemon.create(podId, pod, ["/no/such/program"]);
    await failure(daemon.client.StartContainer({ container_id: never }));
    await daemon.removePod(podId);
    const seen = await events.until(podId, "DELETED");
    const typesOf = (id: string) =>
      seen.filter((event) => event.container_id === id).map((event) => nameOf(event));
    expect(typesOf(quick)).toEqual(["CREATED", "STARTED", "STOPPED", "DELETED"]);
    expect(typesOf(never)).toEqual(["CREATED", "STOPPED", "DELETED"]);
    const stopped = seen.find(
      (event) => event.container_id === never && nameOf(event) === "STOPPED",
    )!;
    const status = stopped.containers_statuses.find((one) => one.id === never);
    expect(status).toMatchObject({ reason: "StartError", exit_code: 128 });
  });

  test("a failed RunPodSandbox sends no event", async () => {
    using events = listen();
    const sysctls = { "net.ipv4.no_such_key": "1" };
    await failure(daemon.runPod(daemon.podConfig({ linux: { sysctls } })));
    const podId = await daemon.runPod(daemon.hostPodConfig());
    await daemon.removePod(podId);
    const seen = await events.until(podId, "DELETED");
    expect([...new Set(seen.map((event) => event.container_id))]).toEqual([podId]);
  });
});

test("PodSandboxStatus has the pod's containers and a time on the events' own clock", async () => {
  using events = listen();
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const times: bigint[] = [];
  const ask = async () => {
    const response = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId });
    times.push(toBigInt(response.timestamp));
    return response.containers_statuses.map((status) => status.id);
  };
  expect(await ask()).toEqual([]);
  const id = await daemon.create(podId, pod, "true");
  const [created] = (await events.until(id, "CREATED")).slice(-1);
  times.push(toBigInt(created!.created_at));
  expect(await ask()).toEqual([id]);
  await daemon.restart("SIGKILL");
  expect(await ask()).toEqual([id]);
  await daemon.restart();
  expect(await ask()).toEqual([id]);
  expect(times).toEqual([...times].sort((a, b) => (a < b ? -1 : 1)));
  expect(new Set(times).size).toBe(times.length);
  await daemon.removePod(podId);
});

test("the daemon's exit ends the stream before it waits for calls, and clients can reconnect at once", async () => {
  const events = listen();
  await daemon.client.Version({}); // calls on one connection reach the daemon in order
  await daemon.stop();
  // Of a stream that is still open after the wait, the client hears of a lost connection instead.
  const message = expect.stringContaining("the daemon is ending");
  expect(await events.end).toMatchObject({ code: "UNAVAILABLE", message });
  await daemon.start();
  using again = listen();
  const podId = await daemon.runPod(daemon.hostPodConfig());
  expect(await again.until(podId, "STARTED")).toHaveLength(2);
  await daemon.removePod(podId);
});

test(
  "a client that never reads is disconnected; another one gets every event",
  async () => {
    using stalled = connect(`unix://${daemon.socket}`);
    const unread = stalled.GetContainerEvents({})[Symbol.asyncIterator]();
    const first = unread.next(); // only this one
    using events = listen();
    for (const one of [stalled, daemon.client]) await one.Version({}); // both listen
    // Large statuses fill what the connection buffers, and then the queue.
    const annotations = { "test/large": "x".repeat(10_000) };
    const pod = daemon.hostPodConfig({ annotations });
    const podId = await daemon.runPod(pod);
    await first;
    const ids: string[] = [];
    const makeOne = async () => {
      const id = await daemon.create(podId, pod, "true");
      await daemon.client.RemoveContainer({ container_id: id });
      ids.push(id);
    };
    while (!daemon.log.includes("events behind") && ids.length < 1500) {
      await Promise.all(Array.from({ length: 8 }, makeOne));
    }
    await makeOne();
    const seen = await events.until(ids.at(-1)!, "DELETED");
    const told = Object.groupBy(seen, (event) => event.container_id);
    expect(new Set(Object.keys(told))).toEqual(new Set([podId, ...ids]));
    expect(told[podId]!.map(nameOf)).toEqual(["CREATED", "STARTED"]);
    for (const id of ids)
      expect([id, ...told[id]!.map(nameOf)]).toEqual([id, "CREATED", "DELETED"]);
    const times = seen.map((event) => toBigInt(event.created_at));
    expect(times).toEqual(times.toSorted((a, b) => (a < b ? -1 : Number(a > b))));
    let code = "";
    try {
      while (!(await unread.next()).done);
    } catch (error) {
      ({ code } = error as { code: string });
    }
    expect(code).toBe("RESOURCE_EXHAUSTED");
    await daemon.client.RemovePodSandbox({ pod_sandbox_id: podId });
  },
  testMs(300_000),
);
