// Tests containerd's API (key containerd-socket) with the calls of cAdvisor's client, and the pods' marker
// cgroups.
import { afterAll, beforeAll, expect, test } from "bun:test";
import * as grpc from "@grpc/grpc-js";
import {
  existsSync,
  lstatSync,
  readdirSync,
  readlinkSync,
  rmdirSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { encodeMessage, type Encoder } from "../../src/base/protobuf.ts";
import { containerd, runtime } from "../../src/proto/messages.js";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { until } from "../expect.ts";
import { busybox, cgroupDriver, type Daemon, startDaemon } from "../harness.ts";
import { isV2, makeCgroups } from "../host.ts";

const { Status } = containerd;
const labels = { "io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "shop" };

let daemon: Daemon;
let socket: string;
/** A pod's cgroup as a kubelet makes it, and its folder in the hierarchy that the tests look at. */
let parent: string;
let folder: string;
let made: string[] = [];
beforeAll(async () => {
  daemon = await startDaemon();
  socket = join(daemon.dir, "containerd.sock");
  daemon.writeConfig({ "containerd-socket": socket });
  await daemon.restart();
  const { token } = daemon;
  const isSystemd = cgroupDriver === "systemd";
  parent = isSystemd ? `/${token}.slice/${token}-pod1.slice` : `/${token}/pod1`;
  made = isSystemd ? [] : makeCgroups([`/${token}`, parent]);
  folder = join("/sys/fs/cgroup", isV2 ? "" : "memory", parent);
});
afterAll(async () => {
  try {
    await daemon?.removeAllPods(); // a test that failed has left its own
    for (const path of made.toReversed()) rmdirSync(path);
  } finally {
    await daemon?.[Symbol.asyncDispose]();
  }
});

type Decoder<Message> = { decode(bytes: Uint8Array): Message };

async function call<Request, Response>(
  path: string,
  request: [Encoder<Request>, Request],
  response: Decoder<Response>,
): Promise<Response> {
  const client = new grpc.Client(`unix:${socket}`, grpc.credentials.createInsecure());
  try {
    return await new Promise((resolve, reject) =>
      client.makeUnaryRequest(
        path,
        (message: Request) => encodeMessage(request[0], message),
        (bytes) => response.decode(bytes),
        request[1],
        { deadline: Date.now() + 100_000 },
        (error, value) => (error === null ? resolve(value!) : reject(error)),
      ),
    );
  } finally {
    client.close();
  }
}

/** Returns the gRPC code with which a call fails. */
async function refusal(answer: Promise<unknown>): Promise<grpc.status | undefined> {
  return await answer.then(
    () => undefined,
    (error: grpc.ServiceError) => error.code,
  );
}

async function containerOf(id: string): Promise<containerd.Container> {
  const path = "/containerd.services.containers.v1.Containers/Get";
  const { GetContainerRequest, GetContainerResponse } = containerd;
  const got = await call(path, [GetContainerRequest, { id }], GetContainerResponse);
  return containerd.Container.create(got.container!);
}

async function taskOf(container_id: string): Promise<containerd.Process> {
  const path = "/containerd.services.tasks.v1.Tasks/Get";
  const { GetRequest, GetResponse } = containerd;
  const got = await call(path, [GetRequest, { container_id }], GetResponse);
  return containerd.Process.create(got.process!);
}

function kubeletsPod(): PodSandboxConfig {
  const pod = daemon.podConfig({ labels });
  return { ...pod, linux: { ...pod.linux, cgroup_parent: parent } };
}

function markers(): string[] {
  return existsSync(folder)
    ? readdirSync(folder).filter((name) => name.startsWith("isulad-pod-"))
    : [];
}

/** Returns the pod's only marker once it is another one. */
async function nextMarker(before = ""): Promise<string> {
  await until("there is another marker", () => {
    const found = markers();
    return found.length === 1 && found[0] !== before;
  });
  return markers()[0]!;
}

test("a container has its labels, its image, its specification and its first process", async () => {
  const pod = daemon.podConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.create(podId, pod, ["sh", "-c", "sleep 600"], { labels });
  expect(await refusal(taskOf(id))).toBe(grpc.status.NOT_FOUND);
  await daemon.client.StartContainer({ container_id: id });
  const container = await containerOf(id);
  expect(container.labels).toEqual({ ...labels, "io.cri-containerd.kind": "container" });
  expect(container.image).toBe(busybox);
  const spec = JSON.parse(Buffer.from(container.spec!.value!).toString());
  expect(spec.process.args).toEqual(["sh", "-c", "sleep 600"]);
  expect(await taskOf(id)).toMatchObject({ pid: await daemon.pidOf(id), status: Status.RUNNING });
  await daemon.client.StopContainer({ container_id: id });
  expect(await taskOf(id)).toMatchObject({ status: Status.STOPPED, exit_status: 137 });
  await daemon.removePod(podId);
  for (const get of [containerOf, taskOf]) {
    expect(await refusal(get(id))).toBe(grpc.status.NOT_FOUND);
  }
});

test("a task that is being started is answered once it runs", async () => {
  const pod = daemon.podConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.create(podId, pod, ["sleep", "600"]);
  process.kill(daemon.monitors()[0]!, "SIGSTOP");
  const started = daemon.client.StartContainer({ container_id: id });
  await until("the start waits for the monitor", async () => {
    const { timelines } = await daemon.client.ListTimelines({ pod: `test/${pod.metadata!.name}` });
    return (timelines[0]?.entries ?? []).some(
      ({ what, detail }) => what === "StartContainer" && detail?.includes("monitor start"),
    );
  });
  const answered = taskOf(id);
  await sleep(200);
  process.kill(daemon.monitors()[0]!, "SIGCONT");
  expect(await answered).toMatchObject({ status: Status.RUNNING });
  await started;
  await daemon.removePod(podId);
});

test("a pod's process is one of its network namespace, and each has a marker of its own", async () => {
  const before = daemon.snapshot();
  const pod = kubeletsPod();
  const podId = await daemon.runPod(pod);
  expect((await containerOf(podId)).labels).toEqual({
    ...labels,
    "io.cri-containerd.kind": "sandbox",
  });
  expect(await refusal(taskOf(podId))).toBe(grpc.status.NOT_FOUND);
  expect(markers()).toEqual([]);
  let marker = "";
  for (let attempt = 0; attempt < 10; attempt++) {
    const id = await daemon.run(podId, { ...pod, metadata: { ...pod.metadata, attempt } }, [
      "sleep",
      "600",
    ]);
    marker = await nextMarker(marker);
    expect(marker).toEndWith(`-${podId}.scope`);
    const { pid } = await taskOf(podId);
    expect(pid).toBe(await daemon.pidOf(id));
    expect(readlinkSync(`/proc/${pid}/ns/net`)).not.toBe(readlinkSync("/proc/self/ns/net"));
    const second = await daemon.run(podId, pod, "exit 3"); // another one's end changes nothing
    await daemon.exited(second);
    expect(markers()).toEqual([marker]);
    await daemon.client.StopContainer({ container_id: id });
    await daemon.client.RemoveContainer({ container_id: id });
    await daemon.client.RemoveContainer({ container_id: second });
    await until("the marker is gone", () => markers().length === 0);
  }
  expect(marker).toBe(`isulad-pod-10-${podId}.scope`);
  await daemon.removePod(podId);
  expect(await daemon.leaksSince(before)).toEqual([]);
});

test("of two containers the other one stands for the pod when the first one ends", async () => {
  const pod = kubeletsPod();
  const podId = await daemon.runPod(pod);
  const first = await daemon.run(podId, pod, ["sleep", "600"]);
  const other = await daemon.run(podId, pod, ["sleep", "600"]);
  const marker = await nextMarker();
  expect((await taskOf(podId)).pid).toBe(await daemon.pidOf(first));
  await daemon.client.StopContainer({ container_id: first });
  await nextMarker(marker);
  expect((await taskOf(podId)).pid).toBe(await daemon.pidOf(other));
  await daemon.removePod(podId);
  expect(markers()).toEqual([]);
});

test("a pod with a pid namespace of its own has its pause container's process, and no marker", async () => {
  const pod = kubeletsPod();
  pod.linux!.security_context!.namespace_options!.pid = runtime.v1.NamespaceMode.POD;
  const podId = await daemon.runPod(pod);
  const { pid, status } = await taskOf(podId);
  expect(status).toBe(Status.RUNNING);
  expect(readlinkSync(`/proc/${pid}/exe`)).toEndWith("/pause");
  await daemon.run(podId, pod, ["sleep", "600"]);
  expect((await taskOf(podId)).pid).toBe(pid);
  expect(markers()).toEqual([]);
  await daemon.removePod(podId);
});

test("a pod that is being made is answered once it is there", async () => {
  const pod = kubeletsPod();
  pod.linux!.security_context!.namespace_options!.pid = runtime.v1.NamespaceMode.POD;
  const folder = join(daemon.dir, "graph/sandboxes");
  process.kill(daemon.monitors()[0]!, "SIGSTOP"); // before its pause container
  const running = daemon.runPod(pod);
  await until("it is being made", () => readdirSync(folder).length === 1);
  const answers = Promise.all([containerOf, taskOf].map((get) => get(readdirSync(folder)[0]!)));
  await sleep(200);
  process.kill(daemon.monitors()[0]!, "SIGCONT");
  expect(await answers).toMatchObject([{ image: "" }, { status: Status.RUNNING }]);
  await daemon.removePod(await running);
});

test("a daemon that was killed: the next one takes its socket, and marks its pods anew", async () => {
  const pod = kubeletsPod();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  const marker = await nextMarker();
  await daemon.restart("SIGKILL");
  await nextMarker(marker);
  expect((await taskOf(podId)).pid).toBe(await daemon.pidOf(id));
  await daemon.removePod(podId);
  expect(markers()).toEqual([]);
});

test("only root may connect, and finds CRI there as well; containerd's other calls are UNIMPLEMENTED", async () => {
  expect(lstatSync(socket).mode & 0o777).toBe(0o600);
  const { VersionRequest, VersionResponse } = runtime.v1;
  const cri = await call(
    "/runtime.v1.RuntimeService/Version",
    [VersionRequest, {}],
    VersionResponse,
  );
  expect(cri.runtime_name).toBe("isulad-ts");
  const version = await call(
    "/containerd.services.version.v1.Version/Version",
    [containerd.Empty, {}],
    containerd.VersionResponse,
  );
  expect(version.version).toMatch(/^\d+\.\d+\.\d+/);
  expect(version.version).not.toContain("+isulad-ts");
  const other = call(
    "/containerd.services.containers.v1.Containers/Delete",
    [containerd.GetContainerRequest, { id: "x" }],
    containerd.Empty,
  );
  expect(await refusal(other)).toBe(grpc.status.UNIMPLEMENTED);
});

test("the list has the containers and pods that a filter names", async () => {
  const pod = daemon.podConfig({ labels });
  const podId = await daemon.runPod(pod);
  const [first, second] = [
    await daemon.create(podId, pod, ["true"], { labels: { ...labels, part: "a" } }),
    await daemon.create(podId, pod, ["true"], { labels: { ...labels, part: "b" } }),
  ];
  const list = async (...filters: string[]) => {
    const path = "/containerd.services.containers.v1.Containers/List";
    const { ListContainersRequest, ListContainersResponse } = containerd;
    const got = await call(path, [ListContainersRequest, { filters }], ListContainersResponse);
    return got.containers.map(({ id }) => id!).toSorted();
  };
  expect(await list()).toEqual([podId, first, second].toSorted());
  expect(await list('labels."io.kubernetes.pod.name"==web')).toEqual(
    [podId, first, second].toSorted(),
  );
  expect(await list("labels.part==a", 'labels."io.cri-containerd.kind"==sandbox')).toEqual(
    [podId, first].toSorted(),
  );
  expect(await list("labels.part==a,labels.part==b")).toEqual([]);
  expect(await refusal(list("labels.part~=a"))).toBe(grpc.status.INVALID_ARGUMENT);
  await daemon.removePod(podId);
});

test("runtime-name containerd is the name in both APIs after a restart, and pods stay", async () => {
  const pod = daemon.podConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  const pid = await daemon.pidOf(id);
  daemon.writeConfig({ "containerd-socket": socket, "runtime-name": "containerd" });
  const { restart, warnings } = await daemon.client.Reload({});
  expect(restart).toEqual(["runtime-name"]);
  expect(warnings).toEqual([expect.stringContaining("no container restarts")]);
  expect((await daemon.client.Version({})).runtime_name).toBe("isulad-ts");
  await daemon.restart();
  const { runtime_name, runtime_version } = await daemon.client.Version({});
  expect(runtime_name).toBe("containerd");
  expect(runtime_version).toMatch(/^2\.\d+\.\d+\+isulad-ts\.\d+\.\d+\.\d+/);
  const { version } = await call(
    "/containerd.services.version.v1.Version/Version",
    [containerd.Empty, {}],
    containerd.VersionResponse,
  );
  expect(version).toBe(runtime_version);
  expect(await daemon.pidOf(id)).toBe(pid);
  await daemon.removePod(podId);
  daemon.writeConfig({ "containerd-socket": socket });
  await daemon.restart();
});

test("a path that another program has made is refused, and stays as it is", async () => {
  const other = join(daemon.dir, "other.sock");
  writeFileSync(other, "containerd's");
  await daemon.stop();
  expect(existsSync(socket)).toBe(false);
  daemon.writeConfig({ "containerd-socket": other });
  const refused = await daemon.start().catch((error: Error) => error.message);
  expect(refused).toContain(`containerd-socket ${other} exists`);
  expect(lstatSync(other).size).toBe(12);
  daemon.writeConfig({ "containerd-socket": socket });
  await daemon.start();
  expect(lstatSync(socket).isSocket()).toBe(true);
});
