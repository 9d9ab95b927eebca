// What the pure functions of this room are told about the world. node/host.ts gathers it.
import type { PodSandboxConfig } from "../proto/types.ts";
import type { OciDevice, OciHook, OciHookName, OciMount, OciRlimit } from "./oci_types.ts";
import type { BaseSpec } from "./base_spec.ts";
import type { SelinuxPolicy } from "./selinux.ts";

/** What stays the same while the daemon runs. */
export type HostInfo = {
  cgroupVersion: 1 | 2;
  /** How the node's cgroup2 is mounted: a mount in its cgroup namespace without them ends them. */
  cgroupOptions: string[];
  /** Page sizes that the hugetlb controller limits ("2MB"); none without the controller. */
  hugepageSizes: string[];
  /** Whether swap can be limited (v1: memory.memsw.*, v2: memory.swap.max). */
  swapLimit: boolean;
  /** The daemon's bounding set, by name ("CAP_KILL"): no container can have more. */
  capabilities: string[];
  /** The daemon's own oom_score_adj. */
  oomScoreAdj: number;
  /** Absent where the kernel runs without AppArmor. */
  apparmor?: { defaultProfile?: string };
  /** Whether overlayfs takes id-mapped layers: Linux 5.19. */
  idmappedLayers: boolean;
  /** Absent where the kernel runs without SELinux; without a policy nothing is to be labelled. */
  selinux?: { policy?: SelinuxPolicy };
  /** node:os arch(): "x64", "arm64". */
  arch: string;
};

/** What the runtime handler can do, by its `features` and the kernel. */
export type RuntimeSupport = {
  recursiveReadOnlyMounts: boolean;
  idmapMounts: boolean;
  /** Its ociVersionMax; absent: it does not tell. */
  ociVersion?: string;
};

/** What daemon.json says about a runtime handler's containers. */
export type HandlerSettings = {
  baseSpec?: BaseSpec;
  /** Patterns of what reaches the runtime of a pod's annotations, and of a container's. */
  podAnnotations: string[];
  containerAnnotations: string[];
  /** A privileged container gets the devices that it asks for and no others. */
  privilegedWithoutHostDevices: boolean;
};

/** One CRI mount's source, looked up at creation. */
export type MountSource = {
  /** The path with symbolic links resolved; for an image mount, where it is mounted. */
  source: string;
  /** Of the mount that holds the source. */
  propagation: "private" | "slave" | "shared" | "slave+shared" | "unbindable";
};

/** A device node as it is to be, and where it is on the host. */
export type DeviceSource = { node: OciDevice; hostPath: string };

/** What of host and image one container's spec depends on. */
export type ResolvedInputs = {
  /** One for each of config.mounts, in its order. */
  mounts: MountSource[];
  /** One for each of config.devices, in its order; a folder gives several. */
  devices: DeviceSource[][];
  /** The host's devices; looked up for privileged containers only. */
  hostDevices: DeviceSource[];
  /** What the CDI devices that are asked for change. */
  cdi?: CdiEdits;
  /** Folders of this container for the image's volumes, by where they go. */
  volumes?: { path: string; source: string }[];
  /** The rootfs's /etc/passwd and /etc/group; "" where there is none. */
  passwd: string;
  group: string;
  /** The text of the seccomp profile that localhost_ref names. */
  seccompProfile?: string;
  /** AppArmor profiles that are loaded; looked up where one is named. */
  apparmorProfiles?: string[];
};

/** The part of an image's configuration that a process is made of. */
export type ImageProcess = {
  Env?: string[] | null;
  Entrypoint?: string[] | null;
  Cmd?: string[] | null;
  User?: string | null;
  WorkingDir?: string | null;
};

/** A pod's namespaces as files; one that is absent is the host's. */
export type PodNamespaces = {
  net?: string;
  ipc?: string;
  uts?: string;
  user?: string;
  /** The pause container's, where the pod shares one pid namespace. */
  pid?: string;
};

/** Files on the host that every container of the pod sees. */
export type PodFiles = { hosts: string; hostname: string; resolvConf: string; shm: string };

export type SandboxInfo = {
  id: string;
  config: PodSandboxConfig;
  namespaces: PodNamespaces;
  files: PodFiles;
};

/** What daemon.json says about every container. */
export type ContainerDefaults = {
  rlimits: OciRlimit[];
  /** Clamp oom_score_adj to the daemon's own instead of failing. */
  restrictOomScoreAdj: boolean;
  /** Devices belong to run_as_user and run_as_group instead of whom they belong to on the node. */
  deviceOwnership: boolean;
  /** Absent: the runtime's own, 0022. */
  umask?: number;
};

/** uid and gid: of the process where they are absent. access "": visible, not to be used. */
export type CdiDevice = {
  node: Omit<OciDevice, "uid" | "gid">;
  hostPath: string;
  uid?: number;
  gid?: number;
  access: string;
};

/** What several devices change together, with what had to be looked up on the node. */
export type CdiEdits = {
  env: string[];
  devices: CdiDevice[];
  mounts: OciMount[];
  hooks: { name: OciHookName; hook: OciHook }[];
  gids: number[];
};
