// Tests the life cycle, the network and the names of pods, and invalid requests.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { existsSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { createConnection } from "node:net";
import { hostname } from "node:os";
import { join } from "node:path";
import { runtime } from "../../src/proto/messages.js";
import { failure, own, until } from "../expect.ts";
import { busybox, type Daemon, startDaemon } from "../harness.ts";
import { busyboxImage } from "../image_maker.ts";
import { freePort } from "../registry.ts";

const { NamespaceMode, PodSandboxState } = runtime.v1;
const pause = "example.test/pause:1";

let daemon: Daemon;
beforeAll(async () => {
  daemon = await startDaemon({ config: { "pod-sandbox-image": pause } });
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

async function statusOf(podId: string) {
  const response = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId, verbose: true });
  return Object.assign(response.status!, { info: response.info });
}

function sandboxKey(info: object): string | undefined {
  return /"SandboxKey":\s*"([^"]+)"/.exec(Object.values(info).join("\n"))?.[1];
}

type Shown = { namespaces: { type: string; path?: string }[]; cgroupsPath?: string };
type ShownSpec = { process?: { args: string[] }; annotations: object; linux: Shown };

/** What clients such as multus read of a pod's spec. */
async function specOf(podId: string): Promise<ShownSpec> {
  const { info } = await statusOf(podId);
  return (JSON.parse(info["info"]!) as { runtimeSpec: ShownSpec }).runtimeSpec;
}

async function networkPaths(podId: string) {
  const { linux } = await specOf(podId);
  return linux.namespaces.filter(({ type }) => type === "network").map(({ path }) => path);
}

describe("life cycle", () => {
  test("run, status, list, stop, remove leaves nothing behind", async () => {
    const before = daemon.snapshot();
    const labels = { app: "x", "a.b/c": "" };
    const annotations = { "some.key/with": "ünïcode ✓", empty: "" };
    const config = daemon.podConfig({ labels, annotations });
    const startNs = BigInt(Date.now()) * 1_000_000n;
    const id = await daemon.runPod(config);
    expect(id).toMatch(/^[0-9a-f]{64}$/);
    const status = await statusOf(id);
    expect(own(status)).toMatchObject({ id, labels, annotations });
    expect(status.state).toBe(PodSandboxState.SANDBOX_READY);
    const { name, uid, namespace } = config.metadata!;
    expect(own(status.metadata!)).toEqual({ name, uid, namespace });
    expect(status.created_at!.toBigInt()).toBeGreaterThanOrEqual(startNs - 1_000_000_000n);
    const { items } = await daemon.client.ListPodSandbox({ filter: { id } });
    expect(items).toHaveLength(1);
    expect(own(items[0]!)).toMatchObject({ id, labels, annotations });
    expect(items[0]!.state).toBe(PodSandboxState.SANDBOX_READY);
    expect(items[0]!.created_at!.toBigInt()).toBe(status.created_at!.toBigInt());

    const key = sandboxKey(status.info);
    expect(await networkPaths(id)).toEqual([key]);
    const { annotations: known, linux } = await specOf(id);
    expect(known).toMatchObject({ "io.kubernetes.cri.sandbox-id": id });
    expect(linux.cgroupsPath).toBeString();

    await daemon.client.StopPodSandbox({ pod_sandbox_id: id });
    expect((await statusOf(id)).state).toBe(PodSandboxState.SANDBOX_NOTREADY);
    expect(await networkPaths(id)).toEqual([key]);
    await daemon.client.StopPodSandbox({ pod_sandbox_id: id });
    await daemon.client.RemovePodSandbox({ pod_sandbox_id: id });
    await daemon.client.RemovePodSandbox({ pod_sandbox_id: id });
    expect((await failure(statusOf(id))).code).toBe("NOT_FOUND");
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test("the namespace file is SandboxKey, goes from its mount at stop and away at remove", async () => {
    const config = daemon.podConfig();
    const id = await daemon.runPod(config);
    const key = sandboxKey((await statusOf(id)).info)!;
    expect(key).toMatch(/^\/(var\/)?run\/netns\//);
    const inode = statSync(key).ino;
    expect(inode).toBeGreaterThan(0xf0000000);
    const container = await daemon.run(id, config, ["sleep", "600"]);
    const { stdout } = await daemon.exec(container, "readlink /proc/self/ns/net");
    expect(stdout.trim()).toBe(`net:[${inode}]`);
    await daemon.client.StopPodSandbox({ pod_sandbox_id: id });
    expect(existsSync(key)).toBe(true);
    expect(statSync(key).ino).not.toBe(inode);
    await daemon.client.RemovePodSandbox({ pod_sandbox_id: id });
    expect(existsSync(key)).toBe(false);
  });

  test("remove ends a running pod with its containers", async () => {
    const before = daemon.snapshot();
    const config = daemon.podConfig();
    const id = await daemon.runPod(config);
    await daemon.run(id, config, ["sleep", "600"]);
    await daemon.client.RemovePodSandbox({ pod_sandbox_id: id });
    expect(
      (await daemon.client.ListContainers({ filter: { pod_sandbox_id: id } })).containers,
    ).toEqual([]);
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test("stop ends the containers, which stay listed as exited", async () => {
    const config = daemon.podConfig();
    const id = await daemon.runPod(config);
    const container = await daemon.run(id, config, ["sleep", "600"]);
    await daemon.client.StopPodSandbox({ pod_sandbox_id: id });
    const status = await daemon.status(container);
    expect(status.state).toBe(runtime.v1.ContainerState.CONTAINER_EXITED);
    expect((await failure(daemon.create(id, config, "true"))).code).toBe("FAILED_PRECONDITION");
    await daemon.removePod(id);
  });

  test("ten concurrent pods get ten addresses", async () => {
    const before = daemon.snapshot();
    const configs = Array.from({ length: 10 }, () => daemon.podConfig());
    const ids = await Promise.all(configs.map((config) => daemon.runPod(config)));
    const addresses = await Promise.all(ids.map(async (id) => (await statusOf(id)).network!.ip));
    expect(new Set(addresses).size).toBe(10);
    await Promise.all(ids.map((id) => daemon.removePod(id)));
    expect(await daemon.leaksSince(before)).toEqual([]);
  });
});

describe("names", () => {
  test("a second pod of the same name and attempt is refused, the next attempt is not", async () => {
    const config = daemon.hostPodConfig();
    const id = await daemon.runPod(config);
    const error = await failure(daemon.runPod(config));
    expect(error.code).toBe("ALREADY_EXISTS");
    expect(error.message).toContain(config.metadata!.name!);
    const next = { ...config, metadata: { ...config.metadata, attempt: 1 } };
    const second = await daemon.runPod(next);
    await Promise.all([daemon.removePod(id), daemon.removePod(second)]);
    await daemon.removePod(await daemon.runPod(config));
  });

  test("two calls at once for one pod get one pod", async () => {
    const config = daemon.podConfig();
    const [first, second] = await Promise.all([daemon.runPod(config), daemon.runPod(config)]);
    expect(second).toBe(first);
    await daemon.removePod(first);
  });

  test("a prefix of an id will do, an ambiguous one will not", async () => {
    const ids: string[] = [];
    let digit: string | undefined;
    while (digit === undefined) {
      const id = await daemon.runPod(daemon.hostPodConfig());
      digit = ids.find((other) => other[0] === id[0])?.[0];
      ids.push(id);
    }
    const { status } = await daemon.client.PodSandboxStatus({
      pod_sandbox_id: ids[0]!.slice(0, 13),
    });
    expect(status?.id).toBe(ids[0]);
    const error = await failure(daemon.client.PodSandboxStatus({ pod_sandbox_id: digit }));
    expect(error.code).toBe("INVALID_ARGUMENT");
    await Promise.all(ids.map((id) => daemon.removePod(id)));
  });

  test("unknown ids: stop and remove succeed, status is NOT_FOUND, lists are empty", async () => {
    const id = "0".repeat(64);
    await daemon.client.StopPodSandbox({ pod_sandbox_id: id });
    await daemon.client.RemovePodSandbox({ pod_sandbox_id: id });
    const error = await failure(daemon.client.PodSandboxStatus({ pod_sandbox_id: id }));
    expect(error.code).toBe("NOT_FOUND");
    expect(error.message).toContain(id);
    expect((await daemon.client.ListPodSandbox({ filter: { id } })).items).toEqual([]);
  });

  test("lists filter by state and labels", async () => {
    const first = await daemon.runPod(daemon.hostPodConfig({ labels: { set: "f", n: "1" } }));
    const second = await daemon.runPod(daemon.hostPodConfig({ labels: { set: "f", n: "2" } }));
    await daemon.client.StopPodSandbox({ pod_sandbox_id: second });
    const ids = async (filter: object) =>
      (await daemon.client.ListPodSandbox({ filter })).items.map((pod) => pod.id!).sort();
    expect(await ids({ label_selector: { set: "f" } })).toEqual([first, second].sort());
    expect(await ids({ label_selector: { set: "f", n: "2" } })).toEqual([second]);
    const state = { state: PodSandboxState.SANDBOX_READY };
    expect(await ids({ label_selector: { set: "f" }, state })).toEqual([first]);
    await Promise.all([daemon.removePod(first), daemon.removePod(second)]);
  });
});

describe("network", () => {
  test("the pod's address is its interface's, and the loopback is up", async () => {
    const config = daemon.podConfig();
    const id = await daemon.runPod(config);
    const { network } = await statusOf(id);
    expect(network!.ip).toStartWith(`${daemon.subnet}.`);
    const { text } = await daemon.output(id, config, "ip -4 -o addr; ping -c1 127.0.0.1");
    expect(text).toContain(`inet ${network!.ip}/24`);
    expect(text).toContain("1 packets received");
    await daemon.removePod(id);
  });

  test("hostname, /etc/hosts and resolv.conf are the pod's", async () => {
    const config = daemon.podConfig({
      hostname: "some-host",
      dns_config: { servers: ["10.9.8.7"], searches: ["x.test"], options: ["ndots:3"] },
    });
    const id = await daemon.runPod(config);
    const script = "hostname; cat /etc/hostname /etc/hosts /etc/resolv.conf";
    const { text } = await daemon.output(id, config, script);
    expect(text.match(/^some-host$/gm)).toHaveLength(2);
    expect(text).toMatch(/127\.0\.0\.1\s+localhost/);
    for (const line of ["nameserver 10.9.8.7", "search x.test", "options ndots:3"]) {
      expect(text).toContain(line);
    }
    await daemon.removePod(id);
  });

  test("without a hostname the pod has the node's, everywhere", async () => {
    const config = { ...daemon.podConfig(), hostname: "" };
    const id = await daemon.runPod(config);
    const script = "hostname; cat /etc/hostname; echo $HOSTNAME";
    const { text } = await daemon.output(id, config, script);
    expect(text).toBe(`${hostname()}\n`.repeat(3));
    await daemon.removePod(id);
  });

  test("sysctls hold in the pod", async () => {
    const sysctls = {
      "net.ipv4.ip_unprivileged_port_start": "80\n", // of a YAML block
      "net.ipv4.ip_local_reserved_ports": "",
      "kernel.shm_rmid_forced": "1",
    };
    const config = daemon.podConfig({ linux: { sysctls } });
    const id = await daemon.runPod(config);
    const script =
      "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shm_rmid_forced";
    expect((await daemon.output(id, config, script)).text).toBe("80\n1\n");
    await daemon.removePod(id);
  });

  test("a port of the host leads into the pod, until it stops", async () => {
    const port = await freePort();
    const port_mappings = [{ container_port: 8080, host_port: port, protocol: 0 }];
    const config = daemon.podConfig({ port_mappings });
    const id = await daemon.runPod(config);
    await daemon.run(id, config, "while true; do echo hello | nc -l -p 8080; done");
    const address = (await statusOf(id)).network!.ip!;
    const gateway = `${daemon.subnet}.1`;
    expect(address).not.toBe(gateway);
    const answers = async () => (await read(gateway, port)) === "hello\n";
    await until("the port answers", answers); // the container's shell starts its server
    await daemon.client.StopPodSandbox({ pod_sandbox_id: id });
    expect(await read(gateway, port)).toBe("");
    await daemon.removePod(id);
  });

  test("containers of one pod share network, ipc and /dev/shm, not mounts or pids", async () => {
    const config = daemon.podConfig();
    const id = await daemon.runPod(config);
    const first = await daemon.run(id, config, "echo x > /dev/shm/seen; nc -l -p 99; sleep 600");
    const ns = "for n in net ipc uts pid mnt; do readlink /proc/self/ns/$n; done";
    const script = `${ns}; until [ -s /dev/shm/seen ]; do sleep 0.1; done; cat /dev/shm/seen
      until nc 127.0.0.1 99 < /dev/null 2> /dev/null; do sleep 0.1; done; echo open`;
    const { text } = await daemon.output(id, config, script);
    const lines = text.split("\n");
    const others = (await daemon.exec(first, ns)).stdout.split("\n");
    expect(lines.slice(0, 3)).toEqual(others.slice(0, 3));
    expect(lines[3]).not.toBe(others[3]!);
    expect(lines[4]).not.toBe(others[4]!);
    expect(lines.slice(5, 7)).toEqual(["x", "open"]);
    await daemon.removePod(id);
  });

  test("the host's network needs no CNI and gives no address", async () => {
    const config = daemon.hostPodConfig();
    const id = await daemon.runPod(config);
    const status = await statusOf(id);
    expect(status.network?.ip ?? "").toBe("");
    expect(status.linux?.namespaces?.options?.network).toBe(NamespaceMode.NODE);
    expect(await networkPaths(id)).toEqual([]);
    const { text } = await daemon.output(id, config, "readlink /proc/self/ns/net");
    expect(text.trim()).toBe(`net:[${statSync("/proc/self/ns/net").ino}]`);
    await daemon.removePod(id);
  });
});

/** What a TCP server sends before it closes; "" when nobody listens. */
function read(host: string, port: number): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>();
  let text = "";
  const socket = createConnection({ host, port, timeout: 3000 });
  socket.on("data", (data: Buffer) => {
    text += data.toString();
  });
  for (const event of ["end", "error", "timeout", "close"]) {
    socket.on(event, () => {
      socket.destroy();
      resolve(text);
    });
  }
  return promise;
}

describe("one pid namespace for the pod", () => {
  beforeAll(async () => {
    await daemon.loadImage(busyboxImage({ Entrypoint: ["sleep", "4242"], Cmd: [] }), pause);
  });

  test("a pause container of pod-sandbox-image holds it, which is pinned", async () => {
    const { images } = await daemon.client.ListImages({});
    expect(images.map(({ repo_tags, pinned }) => [repo_tags, pinned === true])).toContainEqual([
      [pause],
      true,
    ]);
    const before = daemon.snapshot();
    const namespace_options = { network: NamespaceMode.POD, pid: NamespaceMode.POD };
    const config = daemon.podConfig({ linux: { security_context: { namespace_options } } });
    const id = await daemon.runPod(config);
    await daemon.run(id, config, ["sleep", "1234"]);
    // A container that has been started may still be the OCI runtime's process.
    const script = "until ps -o args | grep -q '^sleep 1234'; do sleep 0.1; done; ps -o pid,args";
    const { text } = await daemon.output(id, config, script);
    expect(text).toMatch(/^\s*1 .*sleep 4242/m);
    expect(text).toContain("sleep 1234");
    const { containers } = await daemon.client.ListContainers({ filter: { pod_sandbox_id: id } });
    expect(containers).toHaveLength(2);
    await daemon.removePod(id);
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test("the verbose status has the spec of that container, or the pod's namespaces without it", async () => {
    const before = daemon.snapshot();
    const namespace_options = { network: NamespaceMode.POD, pid: NamespaceMode.POD };
    const config = daemon.podConfig({ linux: { security_context: { namespace_options } } });
    const id = await daemon.runPod(config);
    const key = sandboxKey((await statusOf(id)).info);
    const spec = await specOf(id);
    expect(spec.process?.args).toEqual(["sleep", "4242"]);
    expect(spec.linux.namespaces).toContainEqual({ type: "pid" });
    expect(await networkPaths(id)).toEqual([key]);
    const file = join(daemon.dir, "graph/sandboxes", id, "config.json");
    expect(existsSync(file)).toBe(true);
    for (const damage of [() => writeFileSync(file, "{"), () => rmSync(file)]) {
      damage();
      expect((await specOf(id)).process).toBeUndefined();
      expect(await networkPaths(id)).toEqual([key]);
    }
    await daemon.removePod(id);
    expect(await daemon.leaksSince(before)).toEqual([]);
  });
});

describe("bad input leaves nothing behind", () => {
  test.each([
    ["no config", undefined],
    ["no metadata", { hostname: "x" }],
    ["no name", { metadata: { uid: "u", namespace: "n" } }],
  ])("%s is INVALID_ARGUMENT", async (_, config) => {
    const before = daemon.snapshot();
    const error = await failure(daemon.client.RunPodSandbox({ config }));
    expect(error.code).toBe("INVALID_ARGUMENT");
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test("an unknown runtime handler is named, with the known ones", async () => {
    const error = await failure(daemon.runPod(daemon.podConfig(), "nobody"));
    expect(["INVALID_ARGUMENT", "NOT_FOUND"]).toContain(error.code);
    expect(error.message).toContain("nobody");
    expect(error.message).toContain("runc");
  });

  test("a container in an unknown pod, of an image that is not there, or without metadata", async () => {
    const pod = daemon.hostPodConfig();
    const unknown = await failure(daemon.create("f".repeat(64), pod, "true"));
    expect(unknown.code).toBe("NOT_FOUND");
    const id = await daemon.runPod(pod);
    const before = daemon.snapshot();
    const image = { image: "example.test/nothing:1" };
    const missing = await failure(daemon.create(id, pod, "true", { image }));
    expect(missing.code).toBe("NOT_FOUND");
    expect(missing.message).toContain("example.test/nothing:1");
    const request = {
      pod_sandbox_id: id,
      config: { image: { image: busybox } },
      sandbox_config: pod,
    };
    const bare = await failure(daemon.client.CreateContainer(request));
    expect(bare.code).toBe("INVALID_ARGUMENT");
    expect(await daemon.leaksSince(before)).toEqual([]);
    await daemon.removePod(id);
  });

  test("the daemon's log has a line for each failed call", () => {
    expect(readFileSync(daemon.logFile, "utf8")).toContain("nobody");
  });
});
