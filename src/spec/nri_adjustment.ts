// Applies NRI plugins' merged adjustment to the spec of a container that is being created. Runs last, so that
// plugins override CRI and the base spec. Pure; nri/check_answers.ts has validated the adjustment.
import { toBigInt } from "../base/int64.ts";
import type {
  ContainerAdjustment,
  Hook,
  LinuxContainerAdjustment,
  LinuxDevice,
  LinuxSeccomp,
  Mount,
} from "../proto/nri_types.ts";
import { adjustedResources, cannot } from "./nri_resources.ts";
import type { HostInfo } from "./spec_inputs.ts";
import type {
  OciBlockIO,
  OciDevice,
  OciHook,
  OciHookName,
  OciLinux,
  OciMount,
  OciNamespaceType,
  OciProcess,
  OciSeccomp,
  OciSpec,
} from "./oci_types.ts";
import { oomScoreAdj } from "./resources.ts";

// Names by NRI's enum values. The generated enums are loaded only when plugins are enabled.
const ioClasses = ["NONE", "RT", "BE", "IDLE"].map((name) => `IOPRIO_CLASS_${name}`);
const policies = ["NONE", "OTHER", "FIFO", "RR", "BATCH", "ISO", "IDLE", "DEADLINE"];
const schedulerFlags =
  "RESET_ON_FORK RECLAIM DL_OVERRUN KEEP_POLICY KEEP_PARAMS UTIL_CLAMP_MIN UTIL_CLAMP_MAX".split(
    " ",
  );
const memoryModes =
  "DEFAULT PREFERRED BIND INTERLEAVE LOCAL PREFERRED_MANY WEIGHTED_INTERLEAVE".split(" ");
const memoryFlags = ["STATIC_NODES", "RELATIVE_NODES", "NUMA_BALANCING"];

export type AdjustOptions = {
  host: HostInfo;
  /** The runtime's ociVersionMax: it ignores fields of later versions. */
  ociVersion: string;
  /** The parameters of the block I/O class that a plugin sets. */
  blockIO?: OciBlockIO;
  /** /sys/fs/resctrl is mounted. */
  resctrl: boolean;
  restrictOomScoreAdj: boolean;
};

const hookNames: [from: keyof NonNullable<ContainerAdjustment["hooks"]>, to: OciHookName][] = [
  ["prestart", "prestart"],
  ["create_runtime", "createRuntime"],
  ["create_container", "createContainer"],
  ["start_container", "startContainer"],
  ["poststart", "poststart"],
  ["poststop", "poststop"],
];

/**
 * Returns the spec with the adjustment applied; the caller injects CDI devices.
 * @throws CriError FAILED_PRECONDITION for fields that this host or runtime does not support.
 */
export function adjustedSpec(
  spec: OciSpec,
  adjust: ContainerAdjustment,
  options: AdjustOptions,
): OciSpec {
  const linux = adjust.linux ?? {};
  const mounts = adjustedMounts(spec, adjust.mounts ?? []);
  return {
    ...spec,
    process: adjustedProcess(spec.process, adjust, options),
    annotations: changed(spec.annotations, adjust.annotations),
    mounts: mounts.mounts,
    ...adjustedHooks(spec, adjust),
    linux: { ...adjustedLinux(spec.linux, linux, options), ...mounts.propagation },
  };
}

/** Sets entries, and removes those whose key is marked ("-key"). */
function changed(
  old: Record<string, string> | undefined,
  changes: { [key: string]: string } | null | undefined,
): Record<string, string> {
  const result = new Map(Object.entries(old ?? {}));
  for (const [key, value] of Object.entries(changes ?? {})) {
    if (key.startsWith("-")) result.delete(key.slice(1));
    else result.set(key, value);
  }
  return Object.fromEntries(result);
}

function adjustedProcess(
  process: OciProcess,
  adjust: ContainerAdjustment,
  options: AdjustOptions,
): OciProcess {
  const { oom_score_adj, io_priority, scheduler } = adjust.linux ?? {};
  const env = new Map(process.env.map((entry) => [entry.split("=", 1)[0]!, entry]));
  for (const { key = "", value } of adjust.env ?? []) {
    if (key!.startsWith("-")) env.delete(key!.slice(1));
    else env.set(key!, `${key}=${value ?? ""}`);
  }
  const rlimits = new Map((process.rlimits ?? []).map((rlimit) => [rlimit.type, rlimit]));
  for (const { type, soft, hard } of adjust.rlimits ?? []) {
    rlimits.set(type!, { type: type!, soft: toBigInt(soft), hard: toBigInt(hard) });
  }
  const result: OciProcess = { ...process, env: [...env.values()] };
  if (rlimits.size > 0) result.rlimits = [...rlimits.values()];
  if (adjust.args && adjust.args.length > 0) result.args = adjust.args;
  if (oom_score_adj) {
    const value = toBigInt(oom_score_adj.value);
    result.oomScoreAdj = oomScoreAdj(value, options.host, options.restrictOomScoreAdj);
  }
  if (io_priority) {
    delete result.ioPriority;
    const ioClass = ioClasses[io_priority.class ?? 0]!;
    if (ioClass !== "IOPRIO_CLASS_NONE") {
      needs(options, "1.1", "io_priority");
      result.ioPriority = { class: ioClass, priority: io_priority.priority ?? 0 };
    }
  }
  if (scheduler) {
    delete result.scheduler;
    const policy = policies[scheduler.policy ?? 0]!;
    if (policy !== "NONE") {
      needs(options, "1.1", "scheduler");
      const times = (["runtime", "deadline", "period"] as const)
        .map((name) => [name, toBigInt(scheduler[name])] as const)
        .filter(([, value]) => value !== 0n);
      result.scheduler = {
        policy: `SCHED_${policy}`,
        ...(scheduler.nice ? { nice: scheduler.nice } : {}),
        ...(scheduler.priority ? { priority: scheduler.priority } : {}),
        flags: (scheduler.flags ?? []).map((flag) => `SCHED_FLAG_${schedulerFlags[flag]}`),
        ...Object.fromEntries(times),
      };
    }
  }
  return result;
}

function adjustedMounts(
  spec: OciSpec,
  changes: readonly Mount[],
): { mounts: OciMount[]; propagation: Pick<OciLinux, "rootfsPropagation"> } {
  if (changes.length === 0) return { mounts: spec.mounts, propagation: {} };
  const mounts = new Map(spec.mounts.map((mount) => [mount.destination, mount]));
  let propagation = spec.linux.rootfsPropagation;
  for (const { destination, type, source, options } of changes) {
    const at = destination!;
    mounts.delete(at.replace(/^-/, ""));
    if (at.startsWith("-")) continue;
    mounts.set(at, {
      destination: at,
      ...(type ? { type } : {}),
      ...(source ? { source } : {}),
      options: options ?? [],
    });
    // Mount events reach a mount in the container only if its rootfs propagates them.
    if (options?.includes("rshared")) propagation = "rshared";
    else if (options?.includes("rslave") && propagation !== "rshared") propagation = "rslave";
  }
  const depth = (path: string) => path.split("/").filter(Boolean).length;
  return {
    mounts: [...mounts.values()].sort((a, b) => depth(a.destination) - depth(b.destination)),
    propagation: propagation === undefined ? {} : { rootfsPropagation: propagation },
  };
}

function adjustedHooks(spec: OciSpec, { hooks }: ContainerAdjustment): Pick<OciSpec, "hooks"> {
  const result = { ...spec.hooks };
  for (const [from, to] of hookNames) {
    const added = (hooks?.[from] ?? []).map(ociHook);
    if (added.length > 0) result[to] = [...(result[to] ?? []), ...added];
  }
  return Object.keys(result).length > 0 ? { hooks: result } : {};
}

function ociHook({ path, args, env, timeout }: Hook): OciHook {
  return {
    path: path!,
    ...(args && args.length > 0 ? { args } : {}),
    ...(env && env.length > 0 ? { env } : {}),
    ...(timeout ? { timeout: Number(toBigInt(timeout.value)) } : {}),
  };
}

function adjustedLinux(
  linux: OciLinux,
  adjust: LinuxContainerAdjustment,
  options: AdjustOptions,
): OciLinux {
  const result = { ...linux };
  adjustDevices(result, adjust.devices ?? []);
  result.resources = adjustedResources(result.resources, adjust.resources ?? {}, options);
  for (const { type, path } of adjust.namespaces ?? []) {
    const name = type!.replace(/^-/, "") as OciNamespaceType;
    result.namespaces = result.namespaces.filter((namespace) => namespace.type !== name);
    if (type!.startsWith("-")) continue;
    result.namespaces.push({ type: name, ...(path ? { path } : {}) });
  }
  if (adjust.cgroups_path) result.cgroupsPath = adjust.cgroups_path;
  if (adjust.seccomp_policy) result.seccomp = ociSeccomp(adjust.seccomp_policy);
  const sysctl = changed(result.sysctl, adjust.sysctl);
  if (Object.keys(sysctl).length > 0) result.sysctl = sysctl;
  adjustNetDevices(result, adjust, options);
  adjustRdt(result, adjust, options);
  if (adjust.memory_policy) {
    needs(options, "1.3", "memory_policy");
    const { mode, nodes, flags } = adjust.memory_policy;
    result.memoryPolicy = {
      mode: `MPOL_${memoryModes[mode ?? 0]}`,
      ...(nodes ? { nodes } : {}),
      flags: (flags ?? []).map((flag) => `MPOL_F_${memoryFlags[flag]}`),
    };
  }
  return result;
}

/** Adds and removes devices; an added device gets access "rwm". */
function adjustDevices(linux: OciLinux, changes: readonly LinuxDevice[]): void {
  if (changes.length === 0) return;
  const nodes = new Map(linux.devices.map((node) => [node.path, node]));
  const rules = [...linux.resources.devices];
  for (const change of changes) {
    const path = change.path!;
    nodes.delete(path.replace(/^-/, ""));
    if (path.startsWith("-")) continue;
    const node = ociDevice(path, change);
    nodes.set(path, node);
    const { type, major, minor } = node;
    if (type !== "p") rules.push({ allow: true, type, major, minor, access: "rwm" });
  }
  linux.devices = [...nodes.values()];
  linux.resources = { ...linux.resources, devices: rules };
}

function ociDevice(path: string, { type, major, minor, ...rest }: LinuxDevice): OciDevice {
  return {
    path,
    type: type === "u" ? "c" : (type as OciDevice["type"]),
    major: Number(toBigInt(major)),
    minor: Number(toBigInt(minor)),
    fileMode: rest.file_mode?.value ?? 0o666,
    uid: rest.uid?.value ?? 0,
    gid: rest.gid?.value ?? 0,
  };
}

function ociSeccomp(policy: LinuxSeccomp): OciSeccomp {
  return {
    defaultAction: policy.default_action ?? "",
    ...(policy.default_errno ? { defaultErrnoRet: policy.default_errno.value ?? 0 } : {}),
    architectures: policy.architectures ?? [],
    flags: policy.flags ?? [],
    ...(policy.listener_path ? { listenerPath: policy.listener_path } : {}),
    ...(policy.listener_metadata ? { listenerMetadata: policy.listener_metadata } : {}),
    syscalls: (policy.syscalls ?? []).map(({ names, action, errno_ret, args }) => ({
      names: names ?? [],
      action: action ?? "",
      ...(errno_ret ? { errnoRet: errno_ret.value ?? 0 } : {}),
      args: (args ?? []).map(({ index, value, value_two, op }) => ({
        index: index ?? 0,
        value: toBigInt(value),
        valueTwo: toBigInt(value_two),
        op: op ?? "",
      })),
    })),
  };
}

function adjustNetDevices(
  linux: OciLinux,
  { net_devices }: LinuxContainerAdjustment,
  options: AdjustOptions,
): void {
  const devices = new Map(Object.entries(linux.netDevices ?? {}));
  for (const [host, { name }] of Object.entries(net_devices ?? {})) {
    if (host.startsWith("-")) {
      devices.delete(host.slice(1));
      continue;
    }
    needs(options, "1.3", "net_devices");
    devices.set(host, name ? { name } : {});
  }
  if (devices.size > 0) linux.netDevices = Object.fromEntries(devices);
}

function adjustRdt(
  linux: OciLinux,
  adjust: LinuxContainerAdjustment,
  options: AdjustOptions,
): void {
  const { rdt } = adjust;
  const named = adjust.resources?.rdt_class;
  if (rdt?.remove || named?.value === "") delete linux.intelRdt;
  const result: NonNullable<OciLinux["intelRdt"]> = { ...linux.intelRdt };
  if (named?.value) result.closID = named.value;
  if (rdt?.clos_id) result.closID = rdt.clos_id.value ?? "";
  if (rdt?.schemata) result.schemata = rdt.schemata.value ?? [];
  if (rdt?.enable_monitoring) result.enableMonitoring = rdt.enable_monitoring.value ?? false;
  if (Object.keys(result).length === 0) return;
  if (!options.resctrl) throw cannot("rdt", "/sys/fs/resctrl is not mounted on this host");
  if (rdt?.schemata || rdt?.enable_monitoring) needs(options, "1.3", "rdt");
  linux.intelRdt = result;
}

/** A runtime silently ignores fields that it does not know. */
function needs({ ociVersion }: AdjustOptions, version: string, field: string): void {
  const numbers = (text: string) => text.split(/[.+-]/).map(Number);
  const [major = 0, minor = 0] = numbers(ociVersion);
  const [majorMin = 0, minorMin = 0] = numbers(version);
  if (major > majorMin || (major === majorMin && minor >= minorMin)) return;
  throw cannot(
    field,
    `it needs OCI runtime specification ${version}; the runtime supports ${ociVersion}`,
  );
}
