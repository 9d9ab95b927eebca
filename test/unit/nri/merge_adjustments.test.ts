// Tests the validation and merge of plugins' answers.
import { expect, test } from "bun:test";
import Long from "long";
import { toLong } from "../../../src/base/int64.ts";
import type { CriError } from "../../../src/base/errors.ts";
import { checkAdjustment, checkUpdate } from "../../../src/nri/check_answers.ts";
import { AdjustmentMerge } from "../../../src/nri/merge_adjustments.ts";
import { ResourceUpdateMerge } from "../../../src/nri/merge_updates.ts";
import { nri } from "../../../src/proto/nri.js";
import type { Container, ContainerAdjustment, LinuxMemory } from "../../../src/proto/nri_types.ts";

const { Field } = nri.pkg.api.v1alpha1;
const int = (value: number) => ({ value: toLong(value) });

const container: Container = {
  id: "c1",
  annotations: { old: "1", gone: "2" },
  mounts: [
    { destination: "/data", type: "bind", source: "/srv" },
    { destination: "/tmp", type: "tmpfs" },
  ],
  env: ["PATH=/bin", "HOME=/root"],
  args: ["sleep", "1"],
  rlimits: [{ type: "RLIMIT_NOFILE", hard: toLong(10), soft: toLong(5) }],
  linux: {
    namespaces: [{ type: "network", path: "/run/netns/x" }, { type: "pid" }],
    resources: { memory: { limit: int(100) }, cpu: { shares: int(2) } },
  },
};

function merged(...answers: ContainerAdjustment[]): AdjustmentMerge {
  const creation = new AdjustmentMerge(container);
  for (const [index, adjust] of answers.entries()) creation.apply(`${index}0-p`, { adjust });
  return creation;
}

function conflict(...answers: ContainerAdjustment[]): string {
  try {
    merged(...answers);
  } catch (error) {
    expect(error).toMatchObject({ name: "CriError", code: "FAILED_PRECONDITION" });
    return (error as CriError).message;
  }
  throw new Error("There was no conflict.");
}

test("without plugins there is no adjustment and the container is unchanged", () => {
  const creation = merged();
  expect(creation.container()).toMatchObject(container);
  const { linux, ...adjust } = creation.adjustment();
  for (const value of [...Object.values(adjust), linux?.devices, linux?.sysctl]) {
    expect(Object.keys(value ?? {})).toEqual([]);
  }
});

test("each plugin sees the changes of earlier plugins", () => {
  const creation = merged({
    annotations: { new: "3" },
    env: [
      { key: "HOME", value: "/home" },
      { key: "-PATH", value: "" },
    ],
    mounts: [{ destination: "-/tmp" }, { destination: "/data", type: "bind", source: "/other" }],
    args: ["true"],
    linux: { resources: { memory: { limit: int(50) } }, namespaces: [{ type: "-network" }] },
  });
  const seen = creation.container();
  expect(seen.annotations).toEqual({ old: "1", gone: "2", new: "3" });
  expect(seen.env).toEqual(["HOME=/home"]);
  expect(seen.mounts).toEqual([{ destination: "/data", type: "bind", source: "/other" }]);
  expect(seen.args).toEqual(["true"]);
  expect(seen.linux?.namespaces).toEqual([{ type: "pid" }]);
  expect(seen.linux?.resources?.memory?.limit).toEqual(int(50));
  expect(seen.linux?.resources?.cpu?.shares).toEqual(int(2));
});

test("the result has marked removals unless the same plugin adds the entry again", () => {
  const adjust = merged({
    annotations: { "-gone": "", "-old": "", old: "new" },
    env: [
      { key: "-HOME", value: "" },
      { key: "-PATH", value: "" },
      { key: "PATH", value: "/sbin" },
    ],
    mounts: [{ destination: "-/data" }],
    linux: { devices: [{ path: "-/dev/kvm" }], sysctl: { "-kernel.x": "" } },
  }).adjustment();
  expect(adjust.annotations).toEqual({ "-gone": "", old: "new" });
  expect(adjust.env).toEqual([
    { key: "-HOME", value: "" },
    { key: "PATH", value: "/sbin" },
  ]);
  expect(adjust.mounts).toEqual([{ destination: "-/data" }]);
  expect(adjust.linux?.devices).toEqual([{ path: "-/dev/kvm" }]);
  expect(adjust.linux?.sysctl).toEqual({ "-kernel.x": "" });
});

const device = { path: "/dev/x", type: "c", major: toLong(1), minor: toLong(3) };
const keyed: [what: string, adjust: ContainerAdjustment][] = [
  ["Annotations a", { annotations: { a: "1" } }],
  ["Mounts /m", { mounts: [{ destination: "/m" }] }],
  ["Env E", { env: [{ key: "E", value: "1" }] }],
  ["Devices /dev/x", { linux: { devices: [device] } }],
  ["CdiDevices v/c=x", { CDI_devices: [{ name: "v/c=x" }] }],
  ["Rlimits RLIMIT_CORE", { rlimits: [{ type: "RLIMIT_CORE" }] }],
  ["HugepageLimits 2MB", { linux: { resources: { hugepage_limits: [{ page_size: "2MB" }] } } }],
  ["CgroupsUnified memory.high", { linux: { resources: { unified: { "memory.high": "1" } } } }],
  ["Namespace uts", { linux: { namespaces: [{ type: "uts" }] } }],
  ["Sysctl kernel.x", { linux: { sysctl: { "kernel.x": "1" } } }],
  ["LinuxNetDevices eth1", { linux: { net_devices: { eth1: { name: "x" } } } }],
];
const memory = ["limit", "reservation", "swap", "kernel", "kernel_tcp", "swappiness"] as const;
const simple: [what: string, adjust: ContainerAdjustment][] = [
  ...memory.map((name): [string, ContainerAdjustment] => [
    "Mem",
    { linux: { resources: { memory: { [name]: int(0) } } } },
  ]),
  ["MemDisableOomKiller", { linux: { resources: { memory: { disable_oom_killer: {} } } } }],
  ["CPUShares", { linux: { resources: { cpu: { shares: int(1) } } } }],
  ["CPUQuota", { linux: { resources: { cpu: { quota: int(1) } } } }],
  ["CPUPeriod", { linux: { resources: { cpu: { period: int(1) } } } }],
  ["CPURealtimeRuntime", { linux: { resources: { cpu: { realtime_runtime: int(1) } } } }],
  ["CPUSetCPUs", { linux: { resources: { cpu: { cpus: "0" } } } }],
  ["CPUSetMems", { linux: { resources: { cpu: { mems: "0" } } } }],
  ["PidsLimit", { linux: { resources: { pids: {} } } }],
  ["BlockioClass", { linux: { resources: { blockio_class: { value: "a" } } } }],
  ["RdtClass", { linux: { resources: { rdt_class: { value: "a" } } } }],
  ["CgroupsPath", { linux: { cgroups_path: "/x" } }],
  ["OomScoreAdj", { linux: { oom_score_adj: int(1) } }],
  ["IoPriority", { linux: { io_priority: { class: 1 } } }],
  ["SeccompPolicy", { linux: { seccomp_policy: { default_action: "SCMP_ACT_LOG" } } }],
  ["LinuxSched", { linux: { scheduler: {} } }],
  ["MemoryPolicy", { linux: { memory_policy: {} } }],
  ["RdtClosID", { linux: { rdt: { clos_id: { value: "a" } } } }],
  ["RdtSchemata", { linux: { rdt: { schemata: { value: ["a"] } } } }],
  ["Args", { args: ["a"] }],
];

test.each([...keyed, ...simple])("two plugins that set %s are a conflict", (what, adjust) => {
  const message = conflict(adjust, {}, adjust);
  expect(message).toContain("NRI plugins 00-p and 20-p both set");
  expect(message).toContain(what);
  expect(message).toContain("of container c1");
});

test.each(keyed.slice(0, 4))(
  "%s: a plugin may take it away and set it; a third may not",
  (_, adjust) => {
    const removal = mark(adjust);
    const both = { ...adjust, ...removal };
    for (const [name, value] of Object.entries(removal)) {
      const other = adjust[name as keyof ContainerAdjustment];
      if (Array.isArray(value)) Object.assign(both, { [name]: [...value, ...(other as object[])] });
      else if (name === "linux") {
        both.linux = {
          devices: [...(removal.linux?.devices ?? []), ...(adjust.linux?.devices ?? [])],
        };
      } else Object.assign(both, { [name]: { ...(value as object), ...(other as object) } });
    }
    expect(merged(adjust, both).adjustment()).toMatchObject(adjust);
    expect(conflict(adjust, removal, {}, adjust)).toContain("10-p and 30-p");
  },
);

function mark(adjust: ContainerAdjustment): ContainerAdjustment {
  const devices = adjust.linux?.devices?.map(({ path }) => ({ path: `-${path}` }));
  const names = Object.keys(adjust.annotations ?? {}).map((name) => [`-${name}`, ""]);
  return {
    ...(names.length > 0 ? { annotations: Object.fromEntries(names) } : {}),
    ...(adjust.mounts ? { mounts: [{ destination: `-${adjust.mounts[0]!.destination}` }] } : {}),
    ...(adjust.env ? { env: [{ key: `-${adjust.env[0]!.key}`, value: "" }] } : {}),
    ...(devices ? { linux: { devices } } : {}),
  };
}

test("args that begin with an empty one override an earlier plugin's", () => {
  expect(merged({ args: ["a"] }, { args: ["", "b", "c"] }).adjustment().args).toEqual(["b", "c"]);
});

test("rdt.remove removes the class, and later fields are set", () => {
  const class1 = { linux: { rdt: { clos_id: { value: "one" } } } };
  expect(merged(class1, { linux: { rdt: { remove: true } } }).adjustment().linux?.rdt).toEqual({
    remove: true,
  });
  const both = merged(class1, { linux: { rdt: { remove: true, clos_id: { value: "two" } } } });
  expect(both.adjustment().linux?.rdt).toEqual({ remove: true, clos_id: { value: "two" } });
});

test("hooks of all plugins are appended and owned by all", () => {
  const creation = merged(
    { hooks: { prestart: [{ path: "/a" }], poststop: [{ path: "/b" }] } },
    { hooks: { prestart: [{ path: "/c" }] } },
  );
  expect(creation.adjustment().hooks).toEqual({
    prestart: [{ path: "/a" }, { path: "/c" }],
    poststop: [{ path: "/b" }],
  });
  expect(creation.owners.message().owners?.["c1"]?.simple?.[Field.OciHooks]).toBe("00-p,10-p");
});

test("an adjustment stays as it was after one plugin when the next adds to it", () => {
  const creation = merged(
    { hooks: { prestart: [{ path: "/a" }] }, linux: { resources: { pids: { limit: toLong(1) } } } },
    {},
  );
  const first = creation.adjustment();
  const before = structuredClone(first);
  const resources = { memory: { limit: int(2) } };
  const adjust = {
    hooks: { prestart: [{ path: "/b" }], poststop: [{ path: "/c" }] },
    linux: { resources },
  };
  creation.apply("20-p", { adjust });
  expect(structuredClone(first)).toEqual(before);
  expect(creation.adjustment().hooks?.prestart).toHaveLength(2);
});

test("owners are listed by field and key", () => {
  const { owners } = merged(keyed[2]![1], simple[0]![1]).owners.message();
  expect(owners?.["c1"]?.compound?.[Field.Env]).toEqual({ owners: { E: "00-p" } });
  expect(owners?.["c1"]?.simple?.[Field.MemLimit]).toBe("10-p");
});

test("updates of other containers are merged; of the one being created, rejected", () => {
  const creation = new AdjustmentMerge(container);
  const update = (name: "shares" | "period", value: number, id = "c2") => ({
    container_id: id,
    linux: { resources: { cpu: { [name]: int(value) } } },
  });
  creation.apply("1-a", { update: [update("shares", 1)], evict: [{ container_id: "c9" }] });
  creation.apply("2-b", { update: [update("period", 2)] });
  expect(creation.updates.others()).toMatchObject([
    { container_id: "c2", linux: { resources: { cpu: { shares: int(1), period: int(2) } } } },
  ]);
  expect(creation.updates.pluginsOf("c2")).toBe("1-a, 2-b");
  expect(creation.evictions).toEqual([{ container_id: "c9" }]);
  expect(() => creation.apply("3-c", { update: [update("shares", 3)] })).toThrow(/1-a and 3-c/);
  creation.apply("3-c", { update: [{ ...update("shares", 3), ignore_failure: true }] });
  expect(() => creation.apply("3-c", { update: [update("shares", 3, "c1")] })).toThrow(/created/);
});

test("a requested update is changed by plugins, and updates of other containers are separate", () => {
  const request = new ResourceUpdateMerge("c1", { memory: { limit: int(100) } });
  const linux = { resources: { cpu: { shares: int(7) } } };
  request.apply("1-a", {
    update: [
      { container_id: "c1", linux },
      { container_id: "c2", linux },
    ],
  });
  expect(request.updates.requested()).toMatchObject({
    memory: { limit: int(100) },
    cpu: { shares: int(7) },
  });
  expect(request.updates.others().map(({ container_id }) => container_id)).toEqual(["c2"]);
});

test("a memory limit of a plugin drops the requested swap limit, but not that of a plugin", () => {
  const memoryAfter = (...given: LinuxMemory[]) => {
    const requested = { memory: { limit: int(100), swap: int(100) } };
    const request = new ResourceUpdateMerge("c1", requested);
    for (const [index, memory] of given.entries()) {
      const update = [{ container_id: "c1", linux: { resources: { memory } } }];
      request.apply(`${index}-p`, { update });
    }
    expect(requested.memory).toEqual({ limit: int(100), swap: int(100) });
    return request.updates.requested().memory;
  };
  expect(memoryAfter({ limit: int(200) })).toEqual({ limit: int(200) });
  expect(memoryAfter({ reservation: int(9) })).toMatchObject({ limit: int(100), swap: int(100) });
  const both = { limit: int(200), swap: int(300) };
  expect(memoryAfter({ limit: int(200) }, { swap: int(300) })).toEqual(both);
  expect(memoryAfter({ swap: int(300) }, { limit: int(200) })).toEqual(both);
  expect(memoryAfter(both)).toEqual(both);
});

const allow = { default_action: "SCMP_ACT_ALLOW" };
const bad: [what: string, adjust: ContainerAdjustment][] = [
  ["mounts.destination", { mounts: [{ source: "/x" }] }],
  ["mounts.destination", { mounts: [{ destination: "relative" }] }],
  ["mounts.destination", { mounts: [{ destination: "/a/../../b" }] }],
  ["env", { env: [{ key: "A=B", value: "" }] }],
  ["env", { env: [{ key: "-", value: "" }] }],
  ["env", { env: [{ key: "A", value: "a\0b" }] }],
  ["args", { args: [""] }],
  ["annotations", { annotations: { "-": "" } }],
  ["hooks.prestart.path", { hooks: { prestart: [{ path: "x" }] } }],
  ["hooks.poststop.timeout", { hooks: { poststop: [{ path: "/x", timeout: int(0) }] } }],
  ["rlimits.type", { rlimits: [{ type: "NOFILE" }] }],
  ["soft: 5", { rlimits: [{ type: "RLIMIT_NOFILE", soft: toLong(5), hard: toLong(1) }] }],
  ["CDI_devices", { CDI_devices: [{ name: "nonsense" }] }],
  ["devices.path", { linux: { devices: [{ path: "x", type: "c" }] } }],
  ["type", { linux: { devices: [{ path: "/x", type: "z" }] } }],
  ["memory.limit: -5", { linux: { resources: { memory: { limit: int(-5) } } } }],
  ["cpu.cpus", { linux: { resources: { cpu: { cpus: "1-" } } } }],
  ["pids.limit", { linux: { resources: { pids: { limit: toLong(-9) } } } }],
  ["unified", { linux: { resources: { unified: { "../x": "1" } } } }],
  ["page_size", { linux: { resources: { hugepage_limits: [{ page_size: "big" }] } } }],
  ["oom_score_adj: 1001", { linux: { oom_score_adj: int(1001) } }],
  ["cgroups_path", { linux: { cgroups_path: "/a/../../b" } }],
  ["namespaces.type", { linux: { namespaces: [{ type: "net" }] } }],
  ["sysctl", { linux: { sysctl: { "../../x": "1" } } }],
  ["net_devices", { linux: { net_devices: { "a/b": { name: "x" } } } }],
  ["io_priority.priority", { linux: { io_priority: { class: 1, priority: 9 } } }],
  ["io_priority.class", { linux: { io_priority: { class: 4 as never } } }],
  ["scheduler.policy", { linux: { scheduler: { policy: 12 as never } } }],
  ["scheduler.flags", { linux: { scheduler: { flags: [-1 as never] } } }],
  ["memory_policy.mode", { linux: { memory_policy: { mode: 7 as never } } }],
  ["memory_policy.nodes", { linux: { memory_policy: { nodes: "all" } } }],
  ["memory_policy.flags", { linux: { memory_policy: { flags: [-1 as never] } } }],
  ["default_action", { linux: { seccomp_policy: {} } }],
  ["architectures", { linux: { seccomp_policy: { ...allow, architectures: ["amd64"] } } }],
  ["flags", { linux: { seccomp_policy: { ...allow, flags: ["LOG"] } } }],
  ["syscalls", { linux: { seccomp_policy: { ...allow, syscalls: [{ action: "SCMP_ACT_LOG" }] } } }],
  [
    "syscalls.action",
    { linux: { seccomp_policy: { ...allow, syscalls: [{ names: ["mkdir"], action: "deny" }] } } },
  ],
  [
    "syscalls.args.op",
    {
      linux: {
        seccomp_policy: {
          ...allow,
          syscalls: [{ names: ["mkdir"], action: "SCMP_ACT_LOG", args: [{ op: "=" }] }],
        },
      },
    },
  ],
];

test.each(["shares", "period"])("cpu.%s is refused where CRI cannot show it", (name) => {
  const linux = { resources: { cpu: { [name]: { value: Long.MAX_UNSIGNED_VALUE } } } };
  expect(() => checkAdjustment({ linux })).toThrow(`cpu.${name}: 18446744073709551615`);
  expect(() => checkUpdate({ container_id: "x", linux })).toThrow(`update of x: cpu.${name}`);
});

test.each(bad)("an invalid adjustment is rejected with field and value: %s", (field, adjust) => {
  expect(() => checkAdjustment(adjust)).toThrow(field);
});

test("a valid adjustment is accepted", () => {
  for (const [, adjust] of [...keyed, ...simple]) checkAdjustment(adjust);
  expect(() => checkUpdate({ linux: {} })).toThrow("container_id");
  expect(() =>
    checkUpdate({ container_id: "x", linux: { resources: { memory: { limit: int(-2) } } } }),
  ).toThrow("update of x: memory.limit: -2");
});
