// Requests that no kubelet sends: refused as the caller's mistake, with field and value, and nothing
// made. A table over all RPCs; the last test looks that none is missing.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { dirname, join } from "node:path";
import { toLong } from "../../src/base/int64.ts";
import type { Client } from "../../src/cli/client.ts";
import { ImageService, NodeService, RuntimeService } from "../../src/proto/services.ts";
import type {
  ContainerConfig,
  LinuxContainerResources,
  LinuxContainerSecurityContext,
  Mount,
  PodSandboxConfig,
} from "../../src/proto/types.ts";
import { failure } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { busyboxImage, makeImage, makeLayer } from "../image_maker.ts";
import type { Snapshot } from "../leaks.ts";

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
let running: string;
let before: Snapshot;
beforeAll(async () => {
  daemon = await startDaemon();
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
  running = await daemon.run(podId, pod, ["sleep", "600"]);
  await daemon.exec(running, "true"); // by now the runtime's init has become the program
  before = daemon.snapshot();
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

const big = "x".repeat(10 << 20);
const many = <T>(count: number, make: (index: number) => T): T[] =>
  Array.from({ length: count }, (_, index) => make(index));
const labels = (count: number) => Object.fromEntries(many(count, (index) => [`k${index}`, "v"]));

async function refused(call: Promise<unknown>, field: string): Promise<void> {
  const error = await failure(call);
  expect(error.message).toContain(field);
  expect(error.code).toBe("INVALID_ARGUMENT");
  expect(error.message.length).toBeLessThan(600);
}

const security = (security_context: LinuxContainerSecurityContext): ContainerConfig => ({
  linux: { security_context },
});
const limits = (resources: LinuxContainerResources): ContainerConfig => ({ linux: { resources } });
const mount = (more: Mount): ContainerConfig => ({
  mounts: [{ container_path: "/x", host_path: "/tmp", ...more }],
});

/** By what the message names. */
const containers: [string, ContainerConfig][] = [
  ["config.metadata.name", { metadata: { name: "a\nb" } }],
  ["config.metadata.name", { metadata: { name: "a\0b" } }],
  ["config.metadata.name", { metadata: { name: "../a" } }],
  ["config.metadata.name", { metadata: { name: big.slice(0, 1 << 20) } }],
  ["config.image.image is missing", { image: {} }],
  ["config.image.image", { image: { image: "a\nb" } }],
  ["config.image.user_specified_image", { image: { image: "busybox", user_specified_image: big } }],
  ["config.command has 200000 parts", { command: many(200_000, () => "x") }],
  ["config.command[1]", { command: ["sh", "a\0b"] }],
  ["config.args[0]", { args: [big] }],
  ["config.command, args and envs", { args: many(60, () => "x".repeat(120_000)) }],
  ["config.working_dir", { working_dir: "tmp" }],
  ["config.working_dir", { working_dir: "/a\0b" }],
  ["config.envs[0].key", { envs: [{ key: "A=B", value: Buffer.from("x") }] }],
  ["config.envs[0].key is missing", { envs: [{ key: "", value: Buffer.from("x") }] }],
  ["config.envs[0].value", { envs: [{ key: "A", value: Buffer.from("a\0b") }] }],
  ["config.envs[0].value", { envs: [{ key: "A", value: Buffer.from(big) }] }],
  ["variable A is not UTF-8", { envs: [{ key: "A", value: Buffer.from([0xff, 0xfe]) }] }],
  [
    "config.mounts has 10000 parts",
    { mounts: many(10_000, (index) => ({ container_path: `/m${index}`, host_path: "/tmp" })) },
  ],
  ["config.mounts[0].container_path", mount({ container_path: "x" })],
  ["config.mounts[0].container_path is missing", mount({ container_path: "" })],
  ['mount at "/../.."', mount({ container_path: "/../.." })],
  ["config.mounts[0].host_path", mount({ host_path: "tmp/../etc" })],
  ["config.mounts[0].host_path", mount({ host_path: "/a\0b" })],
  ["config.mounts[0].propagation", mount({ propagation: 9 as never })],
  ["config.mounts[0].image_sub_path", mount({ image_sub_path: "a\0b" })],
  ["mount option", mount({ mount_options: ["suid"] })],
  ["config.mounts[0].mount_options", mount({ mount_options: many(99, () => "nodev") })],
  ["config.devices[0].host_path is missing", { devices: [{ container_path: "/dev/x" }] }],
  [
    "config.devices[0].container_path",
    { devices: [{ container_path: "x", host_path: "/dev/null" }] },
  ],
  ["config.devices[0].permissions", { devices: [{ host_path: "/dev/null", permissions: "rx" }] }],
  ["/no/such/device", { devices: [{ host_path: "/no/such/device" }] }],
  ["config.labels has", { labels: labels(10_000) }],
  ["config.annotations has", { annotations: { big } }],
  ["a key of config.annotations", { annotations: { "a\nb": "x" } }],
  ["config.stop_signal", { stop_signal: 9999 as never }],
  ["config.CDI_devices[0].name", { CDI_devices: [{ name: "a\nb" }] }],
  ["namespace_options.pid", security({ namespace_options: { pid: 77 as never } })],
  ["run_as_user", security({ run_as_user: { value: toLong(-2) } })],
  ["run_as_user", security({ run_as_user: { value: toLong(2n ** 40n) } })],
  ["run_as_username", security({ run_as_username: "root:x:0" })],
  ["supplemental_groups[0]", security({ supplemental_groups: [toLong(-1)] })],
  ["supplemental_groups_policy", security({ supplemental_groups_policy: 5 as never })],
  ["masked_paths[0]", security({ masked_paths: ["proc"] })],
  ["readonly_paths has", security({ readonly_paths: many(5_000, () => "/x") })],
  ["add_capabilities", security({ capabilities: { add_capabilities: ["SYS_ADMIN\n"] } })],
  ["selinux_options.level", security({ selinux_options: { level: "s0:c1\n" } })],
  ["selinux_options.type", security({ selinux_options: { type: "a:b" } })],
  ["seccomp.profile_type", security({ seccomp: { profile_type: 8 as never } })],
  ["apparmor.profile_type", security({ apparmor: { profile_type: 8 as never } })],
  ["cpu_period", limits({ cpu_period: toLong(5) })],
  ["cpu_quota", limits({ cpu_quota: toLong(-7) })],
  ["cpu_shares", limits({ cpu_shares: toLong(-1) })],
  ["memory_limit_in_bytes", limits({ memory_limit_in_bytes: toLong(-9) })],
  ["oom_score_adj", limits({ oom_score_adj: toLong(5_000) })],
  ["cpuset_cpus", limits({ cpuset_cpus: "0\n1" })],
  ["page_size", limits({ hugepage_limits: [{ page_size: "../x", limit: toLong(1) }] })],
  ["a key of config.linux.resources.unified", limits({ unified: { "../x": "1" } })],
];

describe("CreateContainer", () => {
  test.each(containers)("%s", async (field, config) => {
    await refused(daemon.create(podId, pod, ["true"], config), field);
  });

  test.each(["../x.log", "a/../../x.log", ".", "..", "a/", "a\0b", big])(
    "log_path %.20j",
    async (log_path) => {
      await refused(daemon.create(podId, pod, "true", { log_path }), "config.log_path");
    },
  );

  test("without a config; in a pod that is not there", async () => {
    const { client } = daemon;
    await refused(client.CreateContainer({ pod_sandbox_id: podId }), "config is missing");
    const config = { metadata: { name: "c" }, image: { image: "busybox" } };
    for (const pod_sandbox_id of ["", " ", "\n", "../x", "zz"]) {
      const error = await failure(client.CreateContainer({ pod_sandbox_id, config }));
      expect(error.code).toBe("NOT_FOUND");
    }
  });

  test("a log_path in folders of its own is made there", async () => {
    const id = await daemon.create(podId, pod, "true", { log_path: "./a/b//0.log" });
    const { log_path } = await daemon.status(id);
    expect(log_path).toBe(join(pod.log_directory!, "a/b/0.log"));
    expect(dirname(log_path)).toStartWith(daemon.dir);
    await daemon.client.RemoveContainer({ container_id: id });
  });

  test("of an image with an /etc/group of 100 MB", async () => {
    const group = Buffer.alloc(100 << 20, "x:x:1:y\n");
    const entries = [
      { name: "etc", type: "5" },
      { name: "etc/group", data: group },
    ];
    const image = await daemon.loadImage(makeImage([makeLayer(entries)]), "example.test/group:1");
    const error = await failure(daemon.create(podId, pod, ["true"], { image: { image } }));
    expect(error.message).toContain("/etc/group");
    expect(["FAILED_PRECONDITION", "INVALID_ARGUMENT"]).toContain(error.code);
    await daemon.client.RemoveImage({ image: { image } });
  });

  test("of an image whose own words are hostile", async () => {
    const nul = busyboxImage({ Env: ["A\0=b"] });
    const refused = await failure(daemon.loadImage(nul, "example.test/words:1"));
    expect([refused.code, refused.message]).toEqual([
      "INVALID_ARGUMENT",
      expect.stringContaining("Env"),
    ]);
    const settings = { User: "no\nsuch:user", WorkingDir: "../..", StopSignal: "x" };
    const image = await daemon.loadImage(busyboxImage(settings), "example.test/words:1");
    const error = await failure(daemon.create(podId, pod, ["true"], { image: { image } }));
    expect(error.code).toBe("INVALID_ARGUMENT");
    await daemon.client.RemoveImage({ image: { image } });
  });
});

const inPod = (security_context: object): PodSandboxConfig => ({ linux: { security_context } });
const pods: [string, PodSandboxConfig][] = [
  ["config.metadata is missing", { metadata: null }],
  ["config.metadata.uid is missing", { metadata: { name: "a", namespace: "b" } }],
  ["config.metadata.name", { metadata: { name: "a/b", namespace: "b", uid: "c" } }],
  ["config.metadata.namespace", { metadata: { name: "a", namespace: "b\n", uid: "c" } }],
  ["K8S_POD_NAME", { metadata: { name: "a;K=V", namespace: "b", uid: "c" } }],
  ["config.hostname", { hostname: "a\nb" }],
  ["config.hostname", { hostname: "a\0b" }],
  ["config.hostname", { hostname: "h".repeat(65) }],
  ["config.log_directory", { log_directory: "logs" }],
  ["config.dns_config.servers[0]", { dns_config: { servers: ["1.1.1.1\nnameserver 2.2.2.2"] } }],
  ["config.dns_config.searches has", { dns_config: { searches: many(1_000, () => "x.test") } }],
  ["config.dns_config.options[0]", { dns_config: { options: ["a b"] } }],
  ["port_mappings[0].host_port", { port_mappings: [{ host_port: 70_000, container_port: 80 }] }],
  ["port_mappings[0].container_port", { port_mappings: [{ host_port: 80, container_port: -1 }] }],
  [
    "port_mappings[0].host_ip",
    { port_mappings: [{ host_port: 80, container_port: 80, host_ip: "1.2.3.4; reboot" }] },
  ],
  ["port_mappings[0].protocol", { port_mappings: [{ protocol: 7 as never }] }],
  ["config.labels has", { labels: labels(10_000) }],
  ["config.annotations has", { annotations: { big } }],
  ["cgroup parent", { linux: { cgroup_parent: "/a/../../b" } }],
  ["config.linux.cgroup_parent", { linux: { cgroup_parent: "/a\0b" } }],
  ['sysctls["net.ipv4.ip_forward"]', { linux: { sysctls: { "net.ipv4.ip_forward": "1\n0" } } }],
  ["sysctl", { linux: { sysctls: { "net.ipv4/../../../kernel/x": "1" } } }],
  ["a key of config.linux.sysctls", { linux: { sysctls: { "net.ipv4\nx": "1" } } }],
  ["sysctl kernel.panic", { linux: { sysctls: { "kernel.panic": "1" } } }],
  ["namespace_options.network", inPod({ namespace_options: { network: 99 } })],
  ["userns_options.mode", inPod({ namespace_options: { userns_options: { mode: 3 } } })],
  ["userns_options.mode", inPod({ namespace_options: { userns_options: { mode: 33 } } })],
  ["run_as_group", inPod({ run_as_group: { value: toLong(5) } })],
  ["run_as_user", inPod({ run_as_user: { value: toLong(-5) } })],
  ["seccomp.profile_type", inPod({ seccomp: { profile_type: 9 } })],
  ["config.linux.overhead.cpu_quota", { linux: { overhead: { cpu_quota: toLong(-5) } } }],
];

describe("RunPodSandbox", () => {
  test.each(pods)("%s", async (field, more) => {
    await refused(daemon.runPod({ ...daemon.podConfig(), ...more }), field);
  });

  test("without a config; with a handler that is not there", async () => {
    await refused(daemon.client.RunPodSandbox({}), "config is missing");
    await refused(daemon.runPod(daemon.podConfig(), "no-such"), 'handler "no-such"');
    await refused(daemon.runPod(daemon.podConfig(), "a\nb"), "runtime_handler");
  });
});

/** All other RPCs that take more than an id. */
const others: [keyof Client, string, object][] = [
  ["StopContainer", "timeout -1", { container_id: "x", timeout: toLong(-1) }],
  ["ExecSync", "timeout -1", { container_id: "x", cmd: ["true"], timeout: toLong(-1) }],
  ["ExecSync", "cmd[0]", { container_id: "x", cmd: ["a\0b"] }],
  ["Exec", "cmd[0]", { container_id: "x", cmd: [big], stdout: true }],
  ["Exec", "at least one must be true", { container_id: "x", cmd: ["true"] }],
  ["Exec", "tty and stderr", { container_id: "x", cmd: ["true"], tty: true, stderr: true }],
  ["Attach", "at least one must be true", { container_id: "x" }],
  ["PortForward", "port[0]", { pod_sandbox_id: "x", port: [70_000] }],
  ["PortForward", "port[0]", { pod_sandbox_id: "x", port: [-1] }],
  ["ListPodSandbox", "filter.state.state 9", { filter: { state: { state: 9 } } }],
  ["ListPodSandbox", "filter.label_selector has", { filter: { label_selector: { big } } }],
  ["StreamPodSandboxes", "filter.state.state 9", { filter: { state: { state: 9 } } }],
  ["ListContainers", "filter.state.state 9", { filter: { state: { state: 9 } } }],
  ["StreamContainers", "filter.state.state 9", { filter: { state: { state: 9 } } }],
  ["ListContainerStats", "filter.label_selector has", { filter: { label_selector: { big } } }],
  ["StreamContainerStats", "filter.label_selector has", { filter: { label_selector: { big } } }],
  ["ListPodSandboxStats", "filter.label_selector has", { filter: { label_selector: { big } } }],
  ["StreamPodSandboxStats", "filter.label_selector has", { filter: { label_selector: { big } } }],
  ["UpdateContainerResources", "linux.cpu_shares 1", { linux: { cpu_shares: toLong(1) } }],
  ["UpdateContainerResources", "annotations has", { annotations: { big } }],
  ["UpdatePodSandboxResources", "overhead.cpu_period", { overhead: { cpu_period: toLong(-1) } }],
  ["UpdatePodSandboxResources", "resources.cpuset_mems", { resources: { cpuset_mems: "all" } }],
  ["CheckpointContainer", "location is missing", { container_id: "x" }],
  ["CheckpointContainer", "location", { container_id: "x", location: "a.tar" }],
  ["CheckpointContainer", "timeout", { container_id: "x", location: "/a", timeout: toLong(-1) }],
  ["UpdateRuntimeConfig", "pod_cidr", { runtime_config: { network_config: { pod_cidr: "10/8" } } }],
  ["ListImages", "filter.image.image", { filter: { image: { image: "a\nb" } } }],
  ["StreamImages", "filter.image.image", { filter: { image: { image: "a\nb" } } }],
  ["ImageStatus", "image is missing", {}],
  ["ImageStatus", "image.image is missing", { image: {} }],
  ["ImageStatus", "image.image", { image: { image: big } }],
  ["RemoveImage", "image.image is missing", { image: { image: "" } }],
  ["PullImage", "image.image is missing", { image: {} }],
  ["PullImage", "UPPER CASE", { image: { image: "UPPER CASE" } }],
  ["PullImage", "auth.password is over", { image: { image: "a" }, auth: { password: big } }],
  ["PullImage", "handler", { image: { image: "a", runtime_handler: "no-such" } }],
  ["Pull", "image is missing", {}],
  ["Load", "path", { path: "../x.tar" }],
  ["VerifyImages", "image", { image: "a\nb" }],
  ["CheckRegistry", "image is missing", {}],
  ["CheckRegistry", "password is over", { image: "a", password: big }],
  ["Pull", "auth.username is over", { image: "a", auth: { username: big } }],
  ["Save", "images is empty", { path: "/x.tar" }],
  ["Save", "images[0] is missing", { images: [""], path: "/x.tar" }],
  ["Save", "path", { images: ["a"], path: "x.tar" }],
  ["ImageStatus", "handler", { image: { image: "a", runtime_handler: "no-such" } }],
];

test.each(others)("%s: %s", async (rpc, field, request) => {
  const call = daemon.client[rpc] as (request: object) => Promise<unknown> | AsyncIterable<unknown>;
  const result = call(request);
  const end = result instanceof Promise ? result : Array.fromAsync(result);
  const error = await failure(end);
  await refused(Promise.reject(error), field);
});

/** With nothing but an id: what does not exist is NOT_FOUND, or done already. */
const byId = {
  PodSandboxStatus: "NOT_FOUND",
  StopPodSandbox: "OK",
  RemovePodSandbox: "OK",
  PodSandboxStats: "NOT_FOUND",
  ContainerStatus: "NOT_FOUND",
  StartContainer: "NOT_FOUND",
  StopContainer: "OK",
  RemoveContainer: "OK",
  ReopenContainerLog: "NOT_FOUND",
  ContainerStats: "NOT_FOUND",
  ExecSync: "NOT_FOUND",
  UpdateContainerResources: "NOT_FOUND",
  UpdatePodSandboxResources: "NOT_FOUND",
} as const;
/** Nothing to be wrong with, or not served. */
const takeNothing = `Version Status RuntimeConfig ImageFsInfo GetContainerEvents
  ListMetricDescriptors ListPodSandboxMetrics StreamPodSandboxMetrics CheckpointPod RestorePod
  NriPlugins PruneImages`;

describe("ids are ids, never paths", () => {
  const ids = () => [`../sandboxes/${podId}`, "", " ", "\n", "/", ".", "\0", "é".repeat(100_000)];

  test.each(Object.entries(byId))("%s: %s", async (rpc, code) => {
    const call = daemon.client[rpc as keyof typeof byId] as (request: object) => Promise<unknown>;
    for (const id of ids()) {
      const done = call({ pod_sandbox_id: id, container_id: id, cmd: ["true"] });
      if (code === "OK") await done;
      else expect((await failure(done)).code).toBe(code);
    }
  });
});

test("an error of any length is told, and other calls go on", async () => {
  const long = "é".repeat(60_000);
  const [first, second] = await Promise.all([
    failure(daemon.exec(running, [`/${long}`])),
    daemon.exec(running, "echo on"),
  ]);
  expect(first.message).toMatch(/^exec in container .* \[…\] .* too long$/s);
  expect(second.stdout).toBe("on\n");
});

test("names that JavaScript has of its own are only names", async () => {
  const hostile = JSON.parse('{"__proto__": "a", "constructor": "b", "toString": "c"}') as {
    [key: string]: string;
  };
  const more = { labels: hostile, annotations: hostile };
  const id = await daemon.create(podId, pod, ["true"], more);
  const { labels, annotations } = await daemon.status(id);
  expect(JSON.stringify({ labels, annotations })).toBe(
    JSON.stringify({ labels: hostile, annotations: hostile }),
  );
  const listed = async (label_selector: Record<string, string>) =>
    (await daemon.client.ListContainers({ filter: { label_selector } })).containers.length;
  expect(await listed(hostile)).toBe(1);
  expect(await listed({ valueOf: "" })).toBe(0);
  await daemon.client.RemoveContainer({ container_id: id });
});

test("a request over 16 MiB ends itself and nothing else", async () => {
  const annotations = { a: "x".repeat(17 << 20) };
  const [error, { stdout }] = await Promise.all([
    failure(daemon.create(podId, pod, ["true"], { annotations })),
    daemon.exec(running, "echo on"),
  ]);
  expect(error.code).toBe("RESOURCE_EXHAUSTED");
  expect(stdout).toBe("on\n");
});

test("nothing was made, and what ran runs", async () => {
  expect(await daemon.leaksSince(before)).toEqual([]);
  expect((await daemon.client.ListPodSandbox({})).items).toHaveLength(1);
  expect((await daemon.client.ListContainers({})).containers).toHaveLength(1);
  expect((await daemon.exec(running, "echo on")).stdout).toBe("on\n");
});

test("no RPC is missing here", () => {
  const all = Object.keys({ ...RuntimeService, ...ImageService, ...NodeService });
  const here = new Set<string>([
    "RunPodSandbox",
    "CreateContainer",
    ...others.map(([rpc]) => String(rpc)),
    ...Object.keys(byId),
    ...takeNothing.split(/\s+/),
  ]);
  expect(all.filter((rpc) => !here.has(rpc))).toEqual([]);
});
