// Lists every field that a plugin can adjust, in the stub's JSON, with the expected part of the OCI spec.
// Paths and devices are fake: these containers are never started.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import protobuf from "protobufjs";

const proto = readFileSync(join(import.meta.dirname, "../../proto/nri.proto"), "utf8");
const { root } = protobuf.parse(proto, { keepCase: true });
root.resolveAll();
const adjustment = root.lookupType("nri.pkg.api.v1alpha1.ContainerAdjustment");

/** A feature that the host or the runtime may lack. */
export type Need = "OCI 1.1" | "OCI 1.3" | "resctrl" | "cgroup v2" | "hugetlb";

export type Field = {
  adjust: { linux?: Record<string, unknown> } & Record<string, unknown>;
  /** Part of the spec; its lists must contain at least these entries. */
  spec: object;
  need?: Need;
};

/** In the daemon's configuration: a CDI device that sets CDI=yes, and a block I/O class with weight 77. */
export const cdiDevice = "example.com/device=one";
export const blockioClass = "slow";

const int = (value: number) => ({ value: String(value) });
const resources = (given: object) => ({ linux: { resources: given } });
const linux = (given: Record<string, unknown>) => ({ linux: given });

const hook = { path: "/h", args: ["h", "x"], env: ["A=1"], timeout: int(3) };
const ociHook = { ...hook, timeout: 3 };
const hooks: Field[] = [
  "prestart",
  "createRuntime",
  "createContainer",
  "startContainer",
  "poststart",
  "poststop",
].map((kind) => ({
  adjust: { hooks: { [kind]: [hook] } },
  spec: { hooks: { [kind]: [ociHook] } },
}));

const memory: Field[] = (
  [
    ["limit", "limit", 96 << 20],
    ["reservation", "reservation", 32 << 20],
    ["swap", "swap", 128 << 20],
    ["kernel", "kernel", 64 << 20],
    ["kernelTcp", "kernelTCP", 16 << 20],
    ["swappiness", "swappiness", 7],
  ] as const
).map(([from, to, value]) => ({
  adjust: resources({ memory: { [from]: int(value) } }),
  spec: { linux: { resources: { memory: { [to]: value } } } },
}));

const cpu: Field[] = (
  [
    ["shares", "shares", 300],
    ["quota", "quota", 40_000],
    ["period", "period", 50_000],
    ["realtimeRuntime", "realtimeRuntime", 900],
    ["realtimePeriod", "realtimePeriod", 90_000],
  ] as const
).map(([from, to, value]) => ({
  adjust: resources({ cpu: { [from]: int(value) } }),
  spec: { linux: { resources: { cpu: { [to]: value } } } },
}));

const arg = { index: 1, value: "9", valueTwo: "8", op: "SCMP_CMP_MASKED_EQ" };
const syscall = { names: ["mkdir"], action: "SCMP_ACT_ERRNO", errnoRet: { value: 5 }, args: [arg] };
const policy = {
  defaultAction: "SCMP_ACT_ERRNO",
  defaultErrno: { value: 38 },
  architectures: ["SCMP_ARCH_X86_64"],
  flags: ["SECCOMP_FILTER_FLAG_LOG"],
  listenerPath: "/run/listener.sock",
  listenerMetadata: "mine",
  syscalls: [syscall],
};
const { defaultErrno: _, ...likePolicy } = policy;

const device = { path: "/dev/mine", type: "c", major: "1", minor: "5" };
const rule = { allow: true, type: "b", major: int(8), minor: int(1), access: "rw" };
const mount = { destination: "/mine", type: "bind", source: "/srv", options: ["bind", "ro"] };
const scheduler = {
  policy: "SCHED_DEADLINE",
  nice: 5,
  priority: 0,
  flags: ["SCHED_FLAG_RESET_ON_FORK"],
  runtime: "1000",
  deadline: "2000",
  period: "3000",
};
const realtime = { policy: "SCHED_FIFO", priority: 7 };

const all: Field[] = [
  { adjust: { annotations: { mine: "yes" } }, spec: { annotations: { mine: "yes" } } },
  { adjust: { mounts: [mount] }, spec: { mounts: [mount] } },
  { adjust: { env: [{ key: "A", value: "1=2" }] }, spec: { process: { env: ["A=1=2"] } } },
  { adjust: { args: ["run", "x"] }, spec: { process: { args: ["run", "x"] } } },
  ...hooks,
  {
    adjust: { rlimits: [{ type: "RLIMIT_CORE", hard: "9", soft: "4" }] },
    spec: { process: { rlimits: [{ type: "RLIMIT_CORE", hard: 9, soft: 4 }] } },
  },
  { adjust: { CDIDevices: [{ name: cdiDevice }] }, spec: { process: { env: ["CDI=yes"] } } },
  {
    adjust: linux({
      devices: [{ ...device, fileMode: { value: 384 }, uid: { value: 7 }, gid: { value: 8 } }],
    }),
    spec: {
      linux: {
        devices: [{ ...device, major: 1, minor: 5, fileMode: 384, uid: 7, gid: 8 }],
        resources: { devices: [{ allow: true, type: "c", major: 1, minor: 5, access: "rwm" }] },
      },
    },
  },
  ...memory,
  {
    adjust: resources({ memory: { disableOomKiller: { value: true } } }),
    spec: { linux: { resources: { memory: { disableOOMKiller: true } } } },
  },
  {
    adjust: resources({ memory: { useHierarchy: { value: true } } }),
    spec: { linux: { resources: { memory: { useHierarchy: true } } } },
  },
  ...cpu,
  {
    adjust: resources({ cpu: { cpus: "0", mems: "0" } }),
    spec: { linux: { resources: { cpu: { cpus: "0", mems: "0" } } } },
  },
  {
    adjust: resources({ hugepageLimits: [{ pageSize: "2MB", limit: String(4 << 20) }] }),
    spec: { linux: { resources: { hugepageLimits: [{ pageSize: "2MB", limit: 4 << 20 }] } } },
    need: "hugetlb",
  },
  {
    adjust: resources({ blockioClass: { value: blockioClass } }),
    spec: { linux: { resources: { blockIO: { weight: 77 } } } },
  },
  {
    adjust: resources({ rdtClass: { value: "gold" } }),
    spec: { linux: { intelRdt: { closID: "gold" } } },
    need: "resctrl",
  },
  {
    adjust: resources({ unified: { "memory.high": "1048576" } }),
    spec: { linux: { resources: { unified: { "memory.high": "1048576" } } } },
    need: "cgroup v2",
  },
  {
    adjust: resources({ devices: [rule] }),
    spec: { linux: { resources: { devices: [{ ...rule, major: 8, minor: 1 }] } } },
  },
  {
    adjust: resources({ pids: { limit: "33" } }),
    spec: { linux: { resources: { pids: { limit: 33 } } } },
  },
  { adjust: linux({ cgroupsPath: "/chosen" }), spec: { linux: { cgroupsPath: "/chosen" } } },
  { adjust: linux({ oomScoreAdj: int(777) }), spec: { process: { oomScoreAdj: 777 } } },
  {
    adjust: linux({ ioPriority: { class: "IOPRIO_CLASS_BE", priority: 6 } }),
    spec: { process: { ioPriority: { class: "IOPRIO_CLASS_BE", priority: 6 } } },
    need: "OCI 1.1",
  },
  {
    adjust: linux({ seccompPolicy: policy }),
    spec: {
      linux: {
        seccomp: {
          ...likePolicy,
          defaultErrnoRet: 38,
          syscalls: [{ ...syscall, errnoRet: 5, args: [{ ...arg, value: 9, valueTwo: 8 }] }],
        },
      },
    },
  },
  {
    adjust: linux({ namespaces: [{ type: "uts", path: "/proc/1/ns/uts" }] }),
    spec: { linux: { namespaces: [{ type: "uts", path: "/proc/1/ns/uts" }] } },
  },
  {
    adjust: linux({ sysctl: { "net.core.somaxconn": "99" } }),
    spec: { linux: { sysctl: { "net.core.somaxconn": "99" } } },
  },
  {
    adjust: linux({ netDevices: { eth7: { name: "mine" } } }),
    spec: { linux: { netDevices: { eth7: { name: "mine" } } } },
    need: "OCI 1.3",
  },
  {
    adjust: linux({ scheduler }),
    spec: {
      process: {
        scheduler: {
          policy: "SCHED_DEADLINE",
          nice: 5,
          flags: ["SCHED_FLAG_RESET_ON_FORK"],
          runtime: 1000,
          deadline: 2000,
          period: 3000,
        },
      },
    },
    need: "OCI 1.1",
  },
  {
    adjust: linux({ scheduler: realtime }),
    spec: { process: { scheduler: realtime } },
    need: "OCI 1.1",
  },
  {
    adjust: linux({ rdt: { closId: { value: "gold" } } }),
    spec: { linux: { intelRdt: { closID: "gold" } } },
    need: "resctrl",
  },
  {
    adjust: linux({ rdt: { schemata: { value: ["MB:0=50"] } } }),
    spec: { linux: { intelRdt: { schemata: ["MB:0=50"] } } },
    need: "resctrl",
  },
  {
    adjust: linux({ rdt: { enableMonitoring: { value: true } } }),
    spec: { linux: { intelRdt: { enableMonitoring: true } } },
    need: "resctrl",
  },
  { adjust: linux({ rdt: { remove: true } }), spec: { linux: {} } },
  {
    adjust: linux({
      memoryPolicy: { mode: "MPOL_BIND", nodes: "0", flags: ["MPOL_F_STATIC_NODES"] },
    }),
    spec: {
      linux: {
        memoryPolicy: { mode: "MPOL_BIND", nodes: "0", flags: ["MPOL_F_STATIC_NODES"] },
      },
    },
    need: "OCI 1.3",
  },
];

export const adjustableFields = all.map((field): [paths: string, field: Field] => [
  leaves(field.adjust).join(", "),
  field,
]);

/** Returns whether NRI 0.6.1 has the field. */
export function isInOldest({ adjust }: Field): boolean {
  const { linux = {}, args, CDIDevices } = adjust;
  const { pids } = (linux["resources"] ?? {}) as { pids?: object };
  const isKnown = (name: string) => ["devices", "resources", "cgroupsPath"].includes(name);
  return !args && !CDIDevices && !pids && Object.keys(linux).every(isKnown);
}

/**
 * As "linux.resources.cpu.shares": the fields of a message of NRI's in the stub's JSON, or of those its
 * value has. Neither keys of maps nor places in lists are part of it.
 */
export function leaves(value?: unknown, type = adjustment): string[] {
  const found = type.fieldsArray.flatMap((field) => {
    const name = field.name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
    const given = (value as Record<string, unknown> | undefined)?.[name];
    if (value !== undefined && given === undefined) return [];
    const inner = field.resolvedType;
    if (!(inner instanceof protobuf.Type)) return [name];
    let items: unknown[] = [given];
    if (given !== undefined && (field.repeated || field.map))
      items = Object.values(given as object);
    return items.flatMap((item) => leaves(item, inner).map((path) => `${name}.${path}`));
  });
  return [...new Set(found)];
}
