// Converts pods and containers to NRI's messages, and resources between CRI, OCI and NRI. Pure.
import { toBigInt, toLong } from "../base/int64.ts";
import { nri } from "../proto/nri.js";
import type {
  Container as NriContainer,
  Hooks,
  LinuxContainer,
  LinuxDevice,
  LinuxMemory,
  LinuxResources,
  LinuxSeccomp,
  Mount,
  PodSandbox as NriPod,
} from "../proto/nri_types.ts";
import type { ContainerConfig, LinuxContainerResources, PodSandboxConfig } from "../proto/types.ts";
import type { OciHook, OciNamespace, OciResources, OciSeccomp, OciSpec } from "../spec/oci.ts";

const { ContainerState, IOPrioClass, LinuxSchedulerFlag, LinuxSchedulerPolicy } =
  nri.pkg.api.v1alpha1;

/** A pod's state at the time of an event. */
export type PodSnapshot = {
  id: string;
  config: PodSandboxConfig;
  runtimeHandler: string;
  /** Pid of its pause container; 0: it has none. */
  pid: number;
  ips: string[];
  namespaces: OciNamespace[];
  cgroupsPath: string;
  /** Of its sandbox container, apart from the pod's own limits. */
  resources: OciResources;
};

/** A container's state at the time of an event. */
export type ContainerSnapshot = {
  id: string;
  sandboxId: string;
  config: ContainerConfig;
  /** Spec that the container runs or will run with. */
  spec: OciSpec;
  /** Classes that plugins chose when it was created. */
  classes?: { blockio?: string | undefined; rdt?: string | undefined };
  image: { id: string; name: string; ref: string };
  state: "created" | "running" | "stopped";
  /** 0: not running. */
  pid: number;
  /** Nanoseconds since the epoch; 0: not yet. */
  createdAtNs: bigint;
  startedAtNs: bigint;
  finishedAtNs: bigint;
  exitCode: number;
  reason: string;
  message: string;
};

export function nriPod(snapshot: PodSnapshot): NriPod {
  const { config } = snapshot;
  const { metadata, linux } = config;
  return {
    id: snapshot.id,
    name: metadata?.name ?? "",
    uid: metadata?.uid ?? "",
    namespace: metadata?.namespace ?? "",
    labels: config.labels ?? {},
    annotations: config.annotations ?? {},
    runtime_handler: snapshot.runtimeHandler,
    pid: snapshot.pid,
    ips: snapshot.ips,
    linux: {
      pod_overhead: linux?.overhead && fromCri(linux.overhead),
      pod_resources: linux?.resources && fromCri(linux.resources),
      cgroup_parent: linux?.cgroup_parent ?? "",
      cgroups_path: snapshot.cgroupsPath,
      namespaces: snapshot.namespaces,
      resources: fromOci(snapshot.resources),
    },
  };
}

export function nriContainer(snapshot: ContainerSnapshot): NriContainer {
  const { config, spec } = snapshot;
  const { uid, gid, additionalGids = [] } = spec.process.user;
  return {
    id: snapshot.id,
    pod_sandbox_id: snapshot.sandboxId,
    name: config.metadata?.name ?? "",
    state: ContainerState[`CONTAINER_${snapshot.state.toUpperCase() as "RUNNING"}`],
    labels: config.labels ?? {},
    annotations: config.annotations ?? {},
    args: spec.process.args,
    env: spec.process.env,
    mounts: spec.mounts.map(({ destination, type, source, options }): Mount => ({
      destination,
      type,
      source,
      options,
    })),
    hooks: nriHooks(spec),
    linux: nriLinux(snapshot),
    pid: snapshot.pid,
    rlimits: (spec.process.rlimits ?? []).map(({ type, soft, hard }) => ({
      type,
      soft: toLong(soft),
      hard: toLong(hard),
    })),
    created_at: toLong(snapshot.createdAtNs),
    started_at: toLong(snapshot.startedAtNs),
    finished_at: toLong(snapshot.finishedAtNs),
    exit_code: snapshot.exitCode,
    status_reason: snapshot.reason,
    status_message: snapshot.message,
    CDI_devices: (config.CDI_devices ?? []).map(({ name }) => ({ name })),
    user: { uid, gid, additional_gids: additionalGids },
    image: {
      name: snapshot.image.name,
      digest: snapshot.image.ref.split("@")[1] ?? "",
      config_digest: snapshot.image.id,
    },
  };
}

function nriHooks({ hooks }: OciSpec): Hooks {
  const of = (list: OciHook[] | undefined) =>
    (list ?? []).map(({ path, args, env, timeout }) => ({
      path,
      args,
      env,
      timeout: optional(timeout),
    }));
  return {
    prestart: of(hooks?.prestart),
    create_runtime: of(hooks?.createRuntime),
    create_container: of(hooks?.createContainer),
    start_container: of(hooks?.startContainer),
    poststart: of(hooks?.poststart),
    poststop: of(hooks?.poststop),
  };
}

function nriLinux({ spec, config, classes }: ContainerSnapshot): LinuxContainer {
  const { linux, process } = spec;
  const { ioPriority, scheduler, oomScoreAdj } = process;
  const { intelRdt: rdt } = linux;
  const profile = config.linux?.security_context?.seccomp;
  return {
    namespaces: linux.namespaces,
    devices: linux.devices.map((device): LinuxDevice => ({
      path: device.path,
      type: device.type,
      major: toLong(device.major),
      minor: toLong(device.minor),
      file_mode: { value: device.fileMode },
      uid: { value: device.uid },
      gid: { value: device.gid },
    })),
    resources: {
      ...fromOci(linux.resources),
      blockio_class: wrapped(classes?.blockio),
      rdt_class: wrapped(classes?.rdt),
    },
    oom_score_adj: optional(oomScoreAdj),
    cgroups_path: linux.cgroupsPath,
    // CRI and NRI have the same numbers for RuntimeDefault, Unconfined and Localhost.
    seccomp_profile: profile && {
      profile_type: (profile.profile_type ?? 0) as number,
      localhost_ref: profile.localhost_ref ?? "",
    },
    seccomp_policy: linux.seccomp && seccompPolicy(linux.seccomp),
    sysctl: linux.sysctl ?? {},
    net_devices: linux.netDevices ?? {},
    io_priority: ioPriority && {
      class: IOPrioClass[ioPriority.class as "IOPRIO_CLASS_BE"],
      priority: ioPriority.priority,
    },
    scheduler: scheduler && {
      policy: LinuxSchedulerPolicy[scheduler.policy as "SCHED_OTHER"],
      nice: scheduler.nice,
      priority: scheduler.priority,
      flags: (scheduler.flags ?? []).map(
        (flag) => LinuxSchedulerFlag[flag as "SCHED_FLAG_RECLAIM"],
      ),
      runtime: toLong(scheduler.runtime ?? 0),
      deadline: toLong(scheduler.deadline ?? 0),
      period: toLong(scheduler.period ?? 0),
    },
    rdt: rdt && {
      clos_id: wrapped(rdt.closID),
      schemata: wrapped(rdt.schemata),
      enable_monitoring: wrapped(rdt.enableMonitoring),
    },
  };
}

function seccompPolicy(seccomp: OciSeccomp): LinuxSeccomp {
  const { defaultErrnoRet } = seccomp;
  return {
    default_action: seccomp.defaultAction,
    ...(defaultErrnoRet === undefined ? {} : { default_errno: { value: defaultErrnoRet } }),
    architectures: seccomp.architectures ?? [],
    flags: seccomp.flags ?? [],
    listener_path: seccomp.listenerPath ?? "",
    listener_metadata: seccomp.listenerMetadata ?? "",
    syscalls: (seccomp.syscalls ?? []).map(({ names, action, errnoRet, args }) => ({
      names,
      action,
      errno_ret: wrapped(errnoRet),
      args: (args ?? []).map(({ index, value, valueTwo, op }) => ({
        index,
        value: toLong(value),
        value_two: toLong(valueTwo ?? 0n),
        op,
      })),
    })),
  };
}

/** Wraps an optional value in NRI's message. */
function wrapped<Value>(value: Value | undefined): { value: Value } | undefined {
  return value === undefined ? undefined : { value };
}

function optional(value: bigint | number | undefined) {
  return value === undefined ? undefined : { value: toLong(value) };
}

function fromOci(resources: OciResources): LinuxResources {
  const { memory = {}, cpu = {}, pids } = resources;
  return {
    memory: {
      limit: optional(memory.limit),
      reservation: optional(memory.reservation),
      swap: optional(memory.swap),
      kernel: optional(memory.kernel),
      kernel_tcp: optional(memory.kernelTCP),
      swappiness: optional(memory.swappiness),
      disable_oom_killer: wrapped(memory.disableOOMKiller),
      use_hierarchy: wrapped(memory.useHierarchy),
    },
    cpu: {
      shares: optional(cpu.shares),
      quota: optional(cpu.quota),
      period: optional(cpu.period),
      realtime_runtime: optional(cpu.realtimeRuntime),
      realtime_period: optional(cpu.realtimePeriod),
      cpus: cpu.cpus ?? "",
      mems: cpu.mems ?? "",
    },
    hugepage_limits: (resources.hugepageLimits ?? []).map(({ pageSize, limit }) => ({
      page_size: pageSize,
      limit: toLong(limit),
    })),
    unified: resources.unified ?? {},
    devices: resources.devices.map(({ allow, type, major, minor, access }) => ({
      allow,
      type: type ?? "",
      major: optional(major),
      minor: optional(minor),
      access,
    })),
    pids: pids && { limit: toLong(pids.limit) },
  };
}

/** Converts CRI's resources, where 0 means "unspecified". */
export function fromCri(resources: LinuxContainerResources): LinuxResources {
  const given = (value: LinuxContainerResources["cpu_quota"]) =>
    toBigInt(value) === 0n ? undefined : { value: toLong(toBigInt(value)) };
  return {
    memory: {
      limit: given(resources.memory_limit_in_bytes),
      swap: given(resources.memory_swap_limit_in_bytes),
    },
    cpu: {
      shares: given(resources.cpu_shares),
      quota: given(resources.cpu_quota),
      period: given(resources.cpu_period),
      cpus: resources.cpuset_cpus ?? "",
      mems: resources.cpuset_mems ?? "",
    },
    hugepage_limits: resources.hugepage_limits ?? [],
    unified: resources.unified ?? {},
  };
}

/** Fields that CRI's resources lack. */
const onlyNri = {
  memory: [
    "reservation",
    "kernel",
    "kernel_tcp",
    "swappiness",
    "disable_oom_killer",
    "use_hierarchy",
  ],
  cpu: ["realtime_runtime", "realtime_period"],
} as const;

/** Changeable resources of an existing container: CRI's resources and the pids limit. */
export type ResourceChange = {
  resources: LinuxContainerResources;
  /** -1: unlimited. */
  pidsLimit?: bigint;
};

/**
 * Converts NRI's resources. Given fields that cannot be changed after creation: `fixed` names limits, `ignored` those
 * that plugins which manage classes repeat in each update.
 */
export function toCri(
  resources: LinuxResources,
): ResourceChange & { fixed: string[]; ignored: string[] } {
  const { memory, cpu, pids } = resources;
  const number = (given: LinuxMemory["limit"]) => toLong(toBigInt(given?.value));
  const fixed = [
    ...onlyNri.memory.filter((name) => memory?.[name]).map((name) => `memory.${name}`),
    ...onlyNri.cpu.filter((name) => cpu?.[name]).map((name) => `cpu.${name}`),
  ];
  const ignored = [
    ...(["blockio_class", "rdt_class"] as const).filter((name) => resources[name]),
    ...((resources.devices ?? []).length > 0 ? ["devices"] : []),
  ];
  return {
    resources: {
      memory_limit_in_bytes: number(memory?.limit),
      memory_swap_limit_in_bytes: number(memory?.swap),
      cpu_shares: number(cpu?.shares),
      cpu_quota: number(cpu?.quota),
      cpu_period: number(cpu?.period),
      cpuset_cpus: cpu?.cpus ?? "",
      cpuset_mems: cpu?.mems ?? "",
      hugepage_limits: resources.hugepage_limits ?? [],
      unified: resources.unified ?? {},
    },
    ...(pids ? { pidsLimit: toBigInt(pids.limit) > 0n ? toBigInt(pids.limit) : -1n } : {}),
    fixed,
    ignored,
  };
}
