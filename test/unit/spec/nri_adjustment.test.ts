// Tests that NRI adjustments are applied to a spec.
import { expect, test } from "bun:test";
import { toLong } from "../../../src/base/int64.ts";
import type { ContainerAdjustment } from "../../../src/proto/nri_types.ts";
import { adjustedSpec, type AdjustOptions } from "../../../src/spec/nri_adjustment.ts";
import { containerSpec, ociJson, parseOciSpec, type OciSpec } from "../../../src/spec/oci.ts";
import { codeAndMessage, host, specInput } from "../../spec/inputs.ts";

const int = (value: number) => ({ value: toLong(value) });
const options: AdjustOptions = {
  host,
  ociVersion: "1.3.0",
  resctrl: true,
  restrictOomScoreAdj: false,
};
const before = containerSpec(specInput({}));

function after(adjust: ContainerAdjustment, more: Partial<AdjustOptions> = {}): OciSpec {
  const spec = adjustedSpec(before, adjust, { ...options, ...more });
  expect(parseOciSpec(ociJson(spec))).toEqual(JSON.parse(JSON.stringify(spec, big), unbig));
  return spec;
}

const big = (_: string, value: unknown) => (typeof value === "bigint" ? `big${value}` : value);
const unbig = (_: string, value: unknown) =>
  typeof value === "string" && /^big-?\d+$/.test(value) ? BigInt(value.slice(3)) : value;

test("an empty adjustment changes nothing", () => {
  expect(after({})).toEqual(before);
});

test("annotations, env and args are set, replaced and removed", () => {
  const [key] = Object.keys(before.annotations);
  const [first] = before.process.env;
  const spec = after({
    annotations: { [`-${key}`]: "", mine: "1" },
    env: [
      { key: `-${first!.split("=")[0]}`, value: "" },
      { key: "NEW", value: "a=b" },
    ],
    args: ["/bin/true", "x"],
  });
  expect(spec.annotations).not.toHaveProperty(key!);
  expect(spec.annotations["mine"]).toBe("1");
  expect(spec.process.env).not.toContain(first!);
  expect(spec.process.env.at(-1)).toBe("NEW=a=b");
  expect(spec.process.args).toEqual(["/bin/true", "x"]);
});

test("mounts are added after their parents, replaced, removed, and set the rootfs propagation", () => {
  const spec = after({
    mounts: [
      { destination: "/a/b", type: "bind", source: "/srv", options: ["rbind", "rslave"] },
      { destination: "/a", type: "tmpfs", source: "tmpfs" },
      { destination: "-/dev/mqueue" },
    ],
  });
  const places = spec.mounts.map(({ destination }) => destination);
  expect(places.indexOf("/a")).toBeLessThan(places.indexOf("/a/b"));
  expect(places).not.toContain("/dev/mqueue");
  expect(spec.linux.rootfsPropagation).toBe("rslave");
});

test("hooks of all six kinds are appended", () => {
  const hook = [{ path: "/h", args: ["h", "x"], env: ["A=1"], timeout: int(3) }];
  const spec = after({
    hooks: {
      prestart: hook,
      create_runtime: hook,
      create_container: hook,
      start_container: hook,
      poststart: hook,
      poststop: hook,
    },
  });
  const oci = [{ path: "/h", args: ["h", "x"], env: ["A=1"], timeout: 3 }];
  expect(spec.hooks).toEqual({
    prestart: oci,
    createRuntime: oci,
    createContainer: oci,
    startContainer: oci,
    poststart: oci,
    poststop: oci,
  });
});

test("devices are added with a cgroup rule, and removed", () => {
  const device = { path: "/dev/n", type: "c", major: toLong(1), minor: toLong(3) };
  const spec = after({ linux: { devices: [{ ...device, file_mode: { value: 0o600 } }] } });
  expect(spec.linux.devices.at(-1)).toEqual({
    path: "/dev/n",
    type: "c",
    major: 1,
    minor: 3,
    fileMode: 0o600,
    uid: 0,
    gid: 0,
  });
  expect(spec.linux.resources.devices.at(-1)).toMatchObject({ allow: true, major: 1, minor: 3 });
  const gone = adjustedSpec(spec, { linux: { devices: [{ path: "-/dev/n" }] } }, options);
  expect(gone.linux.devices).toEqual(before.linux.devices);
});

test("resources are set field by field, with exact integers", () => {
  const large = 9_007_199_254_740_993n;
  const spec = after({
    linux: {
      resources: {
        memory: { limit: { value: toLong(large) }, reservation: int(5), disable_oom_killer: {} },
        cpu: { shares: int(7), quota: int(-1), realtime_runtime: int(9), cpus: "0-1" },
        hugepage_limits: [{ page_size: "2MiB", limit: toLong(4) }],
        unified: { "memory.high": "max" },
        pids: { limit: toLong(0) },
        devices: [{ allow: false, type: "b", major: int(8), access: "w" }],
      },
    },
  });
  expect(spec.linux.resources).toMatchObject({
    memory: { limit: large, swap: large, reservation: 5n, disableOOMKiller: false },
    cpu: { shares: 7n, quota: -1n, realtimeRuntime: 9n, cpus: "0-1" },
    hugepageLimits: [{ pageSize: "2MB", limit: 4n }],
    unified: { "memory.high": "max" },
    pids: { limit: -1n },
  });
  expect(spec.linux.resources.devices.at(-1)).toEqual({
    allow: false,
    type: "b",
    major: 8,
    access: "w",
  });
});

test("a block I/O class sets its parameters, and an empty class removes them", () => {
  const blockIO = { weight: 80, throttleReadBpsDevice: [{ major: 8, minor: 0, rate: 5n }] };
  const slow = { linux: { resources: { blockio_class: { value: "slow" } } } };
  const spec = after(slow, { blockIO });
  expect(spec.linux.resources.blockIO).toEqual(blockIO);
  const none = adjustedSpec(spec, { linux: { resources: { blockio_class: {} } } }, options);
  expect(none.linux.resources).not.toHaveProperty("blockIO");
});

test("rlimits replace those of their type", () => {
  const core = (soft: number) => ({ type: "RLIMIT_CORE", soft: toLong(soft), hard: toLong(9) });
  const spec = adjustedSpec(after({ rlimits: [core(1)] }), { rlimits: [core(2)] }, options);
  expect(spec.process.rlimits?.filter(({ type }) => type === "RLIMIT_CORE")).toEqual([
    { type: "RLIMIT_CORE", soft: 2n, hard: 9n },
  ]);
});

test("oom_score_adj, I/O priority and scheduler of the process are set", () => {
  const { process } = after({
    linux: {
      oom_score_adj: int(-7),
      io_priority: { class: 2, priority: 4 },
      scheduler: { policy: 4, nice: 5, flags: [0], deadline: toLong(3) },
    },
  });
  expect(process.oomScoreAdj).toBe(-7);
  expect(process.ioPriority).toEqual({ class: "IOPRIO_CLASS_BE", priority: 4 });
  expect(process.scheduler).toEqual({
    policy: "SCHED_BATCH",
    nice: 5,
    flags: ["SCHED_FLAG_RESET_ON_FORK"],
    deadline: 3n,
  });
});

test("namespaces, sysctls, seccomp, cgroups path, net devices, rdt and memory policy", () => {
  const { linux } = after({
    linux: {
      namespaces: [{ type: "-uts" }, { type: "network", path: "/run/netns/mine" }],
      sysctl: { "net.core.somaxconn": "7" },
      seccomp_policy: { default_action: "SCMP_ACT_LOG", syscalls: [{ names: ["a"], action: "x" }] },
      cgroups_path: "/mine",
      net_devices: { eth1: { name: "in" } },
      rdt: { clos_id: { value: "gold" }, schemata: { value: ["MB:0=50"] } },
      memory_policy: { mode: 2, nodes: "0", flags: [0] },
    },
  });
  expect(linux.namespaces).toContainEqual({ type: "network", path: "/run/netns/mine" });
  expect(linux.namespaces.map(({ type }) => type)).not.toContain("uts");
  expect(linux.sysctl).toEqual({ "net.core.somaxconn": "7" });
  expect(linux.seccomp?.defaultAction).toBe("SCMP_ACT_LOG");
  expect(linux.cgroupsPath).toBe("/mine");
  expect(linux.netDevices).toEqual({ eth1: { name: "in" } });
  expect(linux.intelRdt).toEqual({ closID: "gold", schemata: ["MB:0=50"] });
  expect(linux.memoryPolicy).toEqual({
    mode: "MPOL_BIND",
    nodes: "0",
    flags: ["MPOL_F_STATIC_NODES"],
  });
});

const v1 = { ...host, cgroupVersion: 1 as const };
test.each<[string, ContainerAdjustment, Partial<AdjustOptions>]>([
  ["specification 1.1", { linux: { scheduler: { policy: 1 } } }, { ociVersion: "1.0.2-dev" }],
  ["specification 1.1", { linux: { io_priority: { class: 1 } } }, { ociVersion: "1.0.2" }],
  ["specification 1.3", { linux: { net_devices: { a: {} } } }, { ociVersion: "1.2.1" }],
  ["specification 1.3", { linux: { memory_policy: { mode: 1 } } }, { ociVersion: "1.2.0" }],
  ["resctrl is not", { linux: { resources: { rdt_class: { value: "a" } } } }, { resctrl: false }],
  ["needs cgroup v2", { linux: { resources: { unified: { "a.b": "1" } } } }, { host: v1 }],
  [
    "hugepage limit for 3MB",
    { linux: { resources: { hugepage_limits: [{ page_size: "3MB" }] } } },
    {},
  ],
])("what host or runtime cannot do is refused: %s", (why, adjust, more) => {
  const failure = codeAndMessage(() => after(adjust, more));
  expect(failure).toStartWith("FAILED_PRECONDITION");
  expect(failure).toContain(why);
});
