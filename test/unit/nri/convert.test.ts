// Tests NRI's messages for pods, containers and synchronization.
import { expect, test } from "bun:test";
import { toBigInt, toLong } from "../../../src/base/int64.ts";
import { fromCri, nriContainer, nriPod, toCri } from "../../../src/nri/convert.ts";
import { synchronizeMessages } from "../../../src/nri/synchronize.ts";
import { nri } from "../../../src/proto/nri.js";
import type { ContainerAdjustment } from "../../../src/proto/nri_types.ts";
import { adjustedSpec } from "../../../src/spec/nri_adjustment.ts";
import { containerSpec, sandboxResources } from "../../../src/spec/oci.ts";
import { codeAndMessage, host, specInput } from "../../spec/inputs.ts";

const api = nri.pkg.api.v1alpha1;
const int = (value: number) => ({ value: toLong(value) });

/** Encodes and decodes a message, as the plugin gets it. */
function sent<Message>(
  type: { encode(message: Message): { finish(): Uint8Array }; decode(bytes: Uint8Array): object },
  message: Message,
): object {
  const decoded = type.decode(type.encode(message).finish());
  return JSON.parse(JSON.stringify(decoded)) as object;
}

test("nriPod() fills every field", () => {
  const pod = nriPod({
    id: "p1",
    config: {
      metadata: { name: "web", namespace: "default", uid: "u1" },
      labels: { a: "b" },
      annotations: { c: "d" },
      linux: {
        cgroup_parent: "/kubepods/p1",
        overhead: { memory_limit_in_bytes: toLong(7) },
        resources: { cpu_shares: toLong(5) },
      },
    },
    runtimeHandler: "runc",
    pid: 12,
    ips: ["10.0.0.1", "fd00::1"],
    namespaces: [{ type: "network", path: "/run/netns/x" }],
    cgroupsPath: "/kubepods/p1",
    resources: sandboxResources(host, false),
  });
  expect(sent(api.PodSandbox, pod)).toMatchObject({
    id: "p1",
    name: "web",
    uid: "u1",
    namespace: "default",
    labels: { a: "b" },
    annotations: { c: "d" },
    runtime_handler: "runc",
    pid: 12,
    ips: ["10.0.0.1", "fd00::1"],
    linux: {
      cgroup_parent: "/kubepods/p1",
      cgroups_path: "/kubepods/p1",
      pod_overhead: { memory: { limit: { value: "7" } } },
      pod_resources: { cpu: { shares: { value: "5" } } },
      namespaces: [{ type: "network", path: "/run/netns/x" }],
      resources: { devices: [{ access: "rwm" }] },
    },
  });
});

const adjustment: ContainerAdjustment = {
  args: ["run"],
  hooks: { poststop: [{ path: "/h", timeout: int(3) }] },
  rlimits: [{ type: "RLIMIT_CORE", soft: toLong(1), hard: toLong(2) }],
  linux: {
    devices: [{ path: "/dev/x", type: "c", major: toLong(1), minor: toLong(3) }],
    oom_score_adj: int(-7),
    io_priority: { class: 2, priority: 4 },
    scheduler: { policy: 4, nice: 5, flags: [0] },
    sysctl: { "kernel.x": "1" },
    seccomp_policy: { default_action: "SCMP_ACT_LOG" },
    net_devices: { eth1: { name: "in" } },
    rdt: { clos_id: { value: "gold" } },
    resources: {
      memory: { limit: int(64), reservation: int(32) },
      cpu: { quota: int(-1), cpus: "0-1" },
      pids: { limit: toLong(9) },
      unified: { "memory.high": "max" },
    },
  },
};

test("nriContainer() shows the spec that runs, including plugins' adjustments", () => {
  const options = { host, ociVersion: "1.3.0", resctrl: true, restrictOomScoreAdj: false };
  const spec = adjustedSpec(containerSpec(specInput({})), adjustment, options);
  const container = nriContainer({
    id: "c1",
    sandboxId: "p1",
    config: { metadata: { name: "main" }, labels: { l: "1" }, annotations: { a: "2" } },
    spec,
    image: { id: "sha256:abc", name: "busybox:latest", ref: "docker.io/busybox@sha256:def" },
    state: "stopped",
    pid: 12,
    createdAtNs: 1_795_287_153_540_051_757n,
    startedAtNs: 2n,
    finishedAtNs: 3n,
    exitCode: 9,
    reason: "Error",
    message: "why",
  });
  const { hooks, rlimits, linux } = adjustment;
  expect(sent(api.Container, container)).toMatchObject({
    id: "c1",
    pod_sandbox_id: "p1",
    name: "main",
    state: "CONTAINER_STOPPED",
    labels: { l: "1" },
    annotations: { a: "2" },
    args: ["run"],
    env: spec.process.env,
    mounts: expect.arrayContaining([
      expect.objectContaining({ destination: "/proc", type: "proc", source: "proc" }),
    ]),
    pid: 12,
    created_at: "1795287153540051757",
    exit_code: 9,
    status_reason: "Error",
    status_message: "why",
    image: { name: "busybox:latest", digest: "sha256:def", config_digest: "sha256:abc" },
    hooks: sent(api.Hooks, hooks!),
    rlimits: rlimits!.map((one) => sent(api.POSIXRlimit, one)),
    linux: sent(api.LinuxContainer, {
      ...linux,
      resources: { ...linux!.resources, memory: { ...linux!.resources!.memory, swap: int(64) } },
    }),
  });
});

test("nriContainer() has the classes that plugins chose", () => {
  const resources = (classes?: { blockio?: string; rdt?: string }) => {
    const spec = containerSpec(specInput({}));
    const times = { createdAtNs: 1n, startedAtNs: 0n, finishedAtNs: 0n };
    const about = { id: "c", sandboxId: "p", config: {}, image: { id: "", name: "", ref: "" } };
    const state = { state: "created" as const, pid: 0, exitCode: 0, reason: "", message: "" };
    const snapshot = { ...about, ...times, ...state, spec, ...(classes && { classes }) };
    return nriContainer(snapshot).linux?.resources;
  };
  expect(resources({ blockio: "slow", rdt: "gold" })).toMatchObject({
    blockio_class: { value: "slow" },
    rdt_class: { value: "gold" },
  });
  for (const none of [undefined, {}]) {
    expect(resources(none)).toMatchObject({ blockio_class: undefined, rdt_class: undefined });
  }
});

test("CRI's resources round-trip; fields that only NRI has are named", () => {
  const cri = {
    memory_limit_in_bytes: toLong(9_007_199_254_740_993n),
    memory_swap_limit_in_bytes: toLong(-1),
    cpu_shares: toLong(2),
    cpu_quota: toLong(-1),
    cpu_period: toLong(100_000),
    cpuset_cpus: "0",
    cpuset_mems: "1",
    hugepage_limits: [{ page_size: "2MB", limit: toLong(4) }],
    unified: { "memory.high": "1" },
  };
  expect(toCri(fromCri(cri))).toEqual({ resources: cri, fixed: [], ignored: [] });
  const { fixed, pidsLimit } = toCri(adjustment.linux!.resources!);
  expect(fixed).toEqual(["memory.reservation"]);
  expect(pidsLimit).toBe(toBigInt(adjustment.linux!.resources!.pids!.limit));
  expect(toCri({ pids: {} }).pidsLimit).toBe(-1n);
});

test("synchronizeMessages() packs each pod and container once into as few messages as needed", () => {
  const pods = Array.from({ length: 3 }, (_, i) => ({ id: `p${i}` }));
  const containers = Array.from({ length: 200 }, (_, i) => ({
    id: `c${i}`,
    args: ["x".repeat(50)],
  }));
  expect(synchronizeMessages([], [])).toHaveLength(1);
  expect(synchronizeMessages(pods, containers)).toHaveLength(1);
  const messages = synchronizeMessages(pods, containers, 1000).map((bytes) => {
    expect(bytes.length).toBeLessThan(1010);
    return api.SynchronizeRequest.decode(bytes);
  });
  expect(messages.length).toBeGreaterThan(10);
  expect(messages.map(({ more }) => more)).toEqual(messages.map((_, i) => i < messages.length - 1));
  expect(messages.flatMap(({ pods }) => pods.map(({ id }) => id))).toEqual(
    pods.map(({ id }) => id),
  );
  expect(messages.flatMap(({ containers }) => containers.map(({ id }) => id))).toEqual(
    containers.map(({ id }) => id),
  );
  const large = [{ id: "x".repeat(2000) }];
  expect(codeAndMessage(() => synchronizeMessages(large, [], 1000))).toContain(
    "RESOURCE_EXHAUSTED",
  );
});
