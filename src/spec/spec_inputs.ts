// Defines the inputs of the pure functions that build specs. node/host_probe.ts, node/container_lookup.ts and cri
// collect them.
import type { PodSandboxConfig } from "../proto/types.ts";
import type { OciDevice, OciHook, OciHookName, OciMount, OciRlimit } from "./oci_types.ts";
import type { BaseSpec } from "./base_spec.ts";
import type { SelinuxPolicy } from "./selinux.ts";

/** Properties of the host and the daemon; constant while the daemon runs. */
export type HostInfo = {
  cgroupVersion: 1 | 2;
  /** Options of the host's cgroup2 mount: a mount in the same cgroup namespace must repeat them, or it resets them. */
  cgroupOptions: string[];
  /** Page sizes of the hugetlb controller ("2MB"); empty without the controller. */
  hugepageSizes: string[];
  /** Whether swap can be limited (v1: memory.memsw.*, v2: memory.swap.max). */
  swapLimit: boolean;
  /** Names of the daemon's bounding set ("CAP_KILL"): no container can have more. */
  capabilities: string[];
  /** The daemon's own oom_score_adj. */
  oomScoreAdj: number;
  /** cgroup controllers that the host lacks or has not mounted. */
  absentControllers: readonly string[];
  /** The soft limit of open files that containers have unless somebody sets one. */
  openFilesSoft: number;
  /** Absent if the kernel runs without AppArmor, or daemon.json disables it. */
  apparmor?: { defaultProfile?: string };
  /** Whether overlayfs supports id-mapped layers: Linux 5.19. */
  idmappedLayers: boolean;
  /** Absent if the kernel runs without SELinux; without a policy nothing gets a label. */
  selinux?: { policy?: SelinuxPolicy };
  /** node:os arch(): "x64", "arm64". */
  arch: string;
};

/** Features that the runtime handler (by its `features` command) and the kernel support. */
export type RuntimeSupport = {
  recursiveReadOnlyMounts: boolean;
  idmapMounts: boolean;
  /** The runtime's ociVersionMax, if it reports one. */
  ociVersion?: string;
  /** Why the features are not known: the runtime did not answer, and is treated as one without them. */
  unknown?: string;
};

/** Settings of daemon.json for a runtime handler's containers. */
export type HandlerSettings = {
  baseSpec?: BaseSpec;
  /** Patterns of the pod's and the container's annotations that are passed to the runtime. */
  podAnnotations: string[];
  containerAnnotations: string[];
  /** Privileged containers get only the devices that they request. */
  privilegedWithoutHostDevices: boolean;
  /** Privileged containers without the node's devices may make and use any device. */
  privilegedAllDevicesAllowed: boolean;
};

/** The resolved source of a CRI mount. */
export type MountSource = {
  /** Path without symbolic links; for an image mount, its mount point. */
  source: string;
  /** Propagation of the mount that contains the source. */
  propagation: "private" | "slave" | "shared" | "slave+shared" | "unbindable";
};

/** A device node for a container, and its path on the host. */
export type DeviceSource = { node: OciDevice; hostPath: string };

/** Inputs of one container's spec that are looked up on the host and in the image when it is created. */
export type ResolvedInputs = {
  /** Parallel to config.mounts. */
  mounts: MountSource[];
  /** Parallel to config.devices; a folder gives several devices. */
  devices: DeviceSource[][];
  /** All devices of the host; only for privileged containers. */
  hostDevices: DeviceSource[];
  /** Merged edits of the requested CDI devices. */
  cdi?: CdiEdits;
  /** The container's folders for the image's volumes, with their mount points. */
  volumes?: { path: string; source: string }[];
  /** Content of the rootfs's /etc/passwd and /etc/group; "" if missing. */
  passwd: string;
  group: string;
  /** Content of the seccomp profile that localhost_ref names. */
  seccompProfile?: string;
  /** Loaded AppArmor profiles; only if the container requests one by name. */
  apparmorProfiles?: string[];
};

/** Process defaults in an image's configuration. */
export type ImageProcess = {
  Env?: string[] | null;
  Entrypoint?: string[] | null;
  Cmd?: string[] | null;
  User?: string | null;
  WorkingDir?: string | null;
};

/** Paths of a pod's namespaces; an absent one is the host's, "" stands for a new one. */
export type PodNamespaces = {
  net?: string;
  ipc?: string;
  uts?: string;
  user?: string;
  /** The pause container's, if the pod shares a pid namespace. */
  pid?: string;
};

/** Host paths of the files that are mounted into every container of the pod. */
export type PodFiles = { hosts: string; hostname: string; resolvConf: string; shm: string };

export type SandboxInfo = {
  id: string;
  config: PodSandboxConfig;
  namespaces: PodNamespaces;
  files: PodFiles;
};

/** Settings of daemon.json for all containers. */
export type ContainerDefaults = {
  rlimits: OciRlimit[];
  /** Clamp oom_score_adj to the daemon's own instead of failing. */
  restrictOomScoreAdj: boolean;
  /** Devices belong to run_as_user and run_as_group instead of their owner on the host. */
  deviceOwnership: boolean;
  /** Absent: the runtime's default, 0022. */
  umask?: number;
};

/** uid and gid: default to the process's. access "": visible but not usable. */
export type CdiDevice = {
  node: Omit<OciDevice, "uid" | "gid">;
  hostPath: string;
  uid?: number;
  gid?: number;
  access: string;
};

/** Merged edits of a container's CDI devices, with host lookups done. */
export type CdiEdits = {
  env: string[];
  devices: CdiDevice[];
  mounts: OciMount[];
  hooks: { name: OciHookName; hook: OciHook }[];
  gids: number[];
};
