// Validation rules for pod and container configurations. Bounds are far above what a kubelet sends; they
// keep one client from filling memory, records and logs.
import { isIP } from "node:net";
import { posix } from "node:path";
import { toBigInt } from "../base/int64.ts";
import { runtime } from "../proto/messages.js";
import type * as cri from "../proto/types.ts";
import { levelPattern } from "../spec/selinux.ts";
import {
  all,
  byteLength,
  list,
  map,
  message,
  oneOf,
  range,
  refuse,
} from "../base/validation_rules.ts";
import { required, text, type Rule } from "../base/validation_rules.ts";

const { NamespaceMode, Protocol, MountPropagation, Signal, SupplementalGroupsPolicy } = runtime.v1;

const int64Max = 2n ** 63n - 1n;
/** Linux PATH_MAX, less the terminating NUL. */
const pathBytesMax = 4_095;
/** Linux MAX_ARG_STRLEN, less the terminating NUL: the limit of one argument or variable. */
const argBytesMax = (128 << 10) - 1;
/** The execve limit of all arguments and variables together: 3/4 of the default stack. */
const argsBytesMax = 6 << 20;
export const argsMax = 100_000;
const mountsMax = 4_096;
export const listMax = 1_024;
/** A kubelet of 1.34 or later masks a path of each CPU; Linux has at most 8,192. */
const maskedPathsMax = 16_384;
/** Linux UID_GID_MAP_MAX_EXTENTS. */
const idMappingsMax = 340;
/** Linux NGROUPS_MAX. */
const groupsMax = 65_536;

/** Text without control characters fits into a log line and a file name. */
const noControls = /^[^\p{Cc}]*$/u;
const line = (bytesMax: number) => text(bytesMax, noControls, "must have no control characters");
/** Kubernetes allows 253 characters; other clients may use longer names. No file has a name of these. */
const name = line(1_024);
const word = (bytesMax: number) =>
  text(bytesMax, /^[^\s\p{Cc}]*$/u, "must have no white space and no control characters");
export const token = word(253);
export const image = line(4_096);
export const handler = line(253);
const noNul = text(pathBytesMax, /^[^\0]*$/, "must have no NUL");
export const absolutePath = text(
  pathBytesMax,
  /^\/[^\0]*$/,
  "must be an absolute path without NUL",
);
export const arg = text(argBytesMax, /^[^\0]*$/, "must have no NUL");
/** A uid or gid; 2^32-1 means "no change" to setuid(2). */
const id = range(0n, 0xffff_fffen);

/** Kubernetes allows 256 KiB for all annotations of an object. */
export const metadata = map({ countMax: 4_096, bytesMax: 1 << 20, key: line(4_096) });

const idMappings = list<cri.IDMapping>(idMappingsMax, () => {});
const int64Value = message<cri.Int64Value>({ value: id });
const groups = list(groupsMax, id);
const profile = message<cri.SecurityProfile>({
  profile_type: oneOf(runtime.v1.SecurityProfile.ProfileType),
  localhost_ref: noNul,
});
const labelPart = text(256, /^[\w.-]*$/, 'must have only letters, digits, "_", "." and "-"');
const selinux = message<cri.SELinuxOption>({
  user: labelPart,
  role: labelPart,
  type: labelPart,
  level: text(4_096, levelPattern, 'must be a level such as "s0:c1,c5"'),
});
const namespaces = message<cri.NamespaceOption>({
  network: oneOf(NamespaceMode),
  pid: oneOf(NamespaceMode),
  ipc: oneOf(NamespaceMode),
  userns_options: message<cri.UserNamespace>({
    mode: oneOf(NamespaceMode),
    uids: idMappings,
    gids: idMappings,
  }),
});

/** The kernel takes 6 bytes for each CPU and 100 more. */
const cpuset = text(
  6 * 8_192 + 100,
  /^\d+(-\d+)?(,\d+(-\d+)?)*$/,
  'must be a list such as "0-3,8"',
);
/** The kernel's bounds, such as cpu.cfs_period_us (10^3 to 10^6) and cpu.shares; -1: no limit. */
const resourceBounds = {
  cpu_period: range(1_000n, 1_000_000n),
  cpu_shares: range(2n, 262_144n),
  memory_swap_limit_in_bytes: range(1n, int64Max, -1n),
  oom_score_adj: range(-1_000n, 1_000n),
  cpuset_cpus: cpuset,
  cpuset_mems: cpuset,
  hugepage_limits: list(
    64,
    message<cri.HugepageLimit>({
      page_size: text(16, /^\d+[KMGT]?i?B?$/, 'must be a size such as "2MB"'),
    }),
  ),
  unified: map({
    countMax: 256,
    bytesMax: 1 << 18,
    key: text(128, /^[a-z0-9_]+(\.[A-Za-z0-9_]+)+$/, "must be a cgroup file's name"),
    value: line(4_096),
  }),
};
export const resources = message<cri.LinuxContainerResources>({
  ...resourceBounds,
  cpu_quota: range(1_000n, int64Max, -1n),
  memory_limit_in_bytes: range(1n, int64Max, -1n),
});
/**
 * Rules for the limits of a pod that is resized. A kubelet subtracts the pod's overhead from the limits of the pod's
 * cgroup: the rest of a quota may be below the kernel's least, and -1 becomes another negative number
 * (sandbox_update.ts).
 */
export const podResources = message<cri.LinuxContainerResources>(resourceBounds);

const podSecurity = message<cri.LinuxSandboxSecurityContext>({
  namespace_options: namespaces,
  selinux_options: selinux,
  run_as_user: int64Value,
  run_as_group: int64Value,
  supplemental_groups: groups,
  supplemental_groups_policy: oneOf(SupplementalGroupsPolicy),
  seccomp: profile,
  apparmor: profile,
  seccomp_profile_path: noNul,
});

const groupHasUser: Rule<cri.LinuxSandboxSecurityContext> = ({ run_as_group, run_as_user }, at) => {
  if (!run_as_group || run_as_user) return;
  refuse(`${at}.run_as_group`, toBigInt(run_as_group.value), "needs run_as_user");
};

export const podConfig = message<cri.PodSandboxConfig>({
  metadata: required(
    message<cri.PodSandboxMetadata>({
      name: required(name),
      uid: required(name),
      namespace: required(name),
    }),
  ),
  // The kernel's limit is 64 bytes.
  hostname: text(64, /^[^\s\p{Cc}/]*$/u, "must have no white space and no slash"),
  log_directory: absolutePath,
  dns_config: message<cri.DNSConfig>({
    servers: list(64, token),
    searches: list(64, word(254)), // a name of 253 characters and the root's dot
    options: list(64, token),
  }),
  port_mappings: list(
    65_536,
    message<cri.PortMapping>({
      protocol: oneOf(Protocol),
      container_port: range(1n, 65_535n),
      host_port: range(1n, 65_535n),
      host_ip: (value, at) => {
        if (isIP(value) === 0) refuse(at, value, "must be an IP address");
      },
    }),
  ),
  labels: metadata,
  annotations: metadata,
  linux: message<cri.LinuxPodSandboxConfig>({
    cgroup_parent: noNul,
    security_context: all(podSecurity, groupHasUser),
    sysctls: map({
      countMax: listMax,
      bytesMax: 1 << 20,
      key: text(256, /^[\w@:./-]+$/, "must be a sysctl's name"),
      // Kubernetes allows any value: an empty one, and the newline that ends a YAML block, are harmless.
      value: text(4_096, /^[\t\x20-\x7e]*\n?$/, "must be one line of ASCII text"),
    }),
    overhead: resources,
    resources,
  }),
});

export const imageSpec = message<cri.ImageSpec>({
  image: required(image),
  annotations: metadata,
  user_specified_image: image,
  runtime_handler: handler,
});

const mount = message<cri.Mount>({
  container_path: required(absolutePath),
  host_path: absolutePath,
  propagation: oneOf(MountPropagation),
  uidMappings: idMappings,
  gidMappings: idMappings,
  image: message<cri.ImageSpec>({ image }),
  image_sub_path: noNul,
  mount_options: list(16, token),
});

const device = message<cri.Device>({
  container_path: absolutePath,
  host_path: required(absolutePath),
  permissions: text(3, /^[rwm]+$/, 'must have only "r", "w" and "m"'),
});

const capabilities = list(128, token);
const containerSecurity = message<cri.LinuxContainerSecurityContext>({
  capabilities: message<cri.Capability>({
    add_capabilities: capabilities,
    drop_capabilities: capabilities,
    add_ambient_capabilities: capabilities,
  }),
  namespace_options: namespaces,
  selinux_options: selinux,
  run_as_user: int64Value,
  run_as_group: int64Value,
  run_as_username: text(256, /^[^\s\p{Cc}:/]*$/u, "must be a user's name"),
  supplemental_groups: groups,
  supplemental_groups_policy: oneOf(SupplementalGroupsPolicy),
  masked_paths: list(maskedPathsMax, absolutePath),
  readonly_paths: list(listMax, absolutePath),
  seccomp: profile,
  apparmor: profile,
  apparmor_profile: noNul,
  seccomp_profile_path: noNul,
});

const env = message<cri.KeyValue>({
  key: required(text(argBytesMax, /^[^\0=]+$/, 'must have no "=" and no NUL')),
  value: (value, at) => {
    if (value.includes(0)) refuse(at, "(bytes)", "must have no NUL");
    if (value.length > argBytesMax) refuse(at, "(bytes)", `is over ${argBytesMax} bytes`);
  },
});

/** execve would refuse a larger process at the start. */
const processSize: Rule<cri.ContainerConfig> = ({ command, args, envs }, at) => {
  let bytes = 0;
  for (const arg of [...(command ?? []), ...(args ?? [])]) bytes += byteLength(arg) + 1;
  for (const { key, value } of envs ?? [])
    bytes += byteLength(key ?? "") + (value?.length ?? 0) + 2;
  if (bytes <= argsBytesMax) return;
  refuse(`${at}.command, args and envs of`, bytes, `bytes are over ${argsBytesMax}`);
};

/** CRI: relative to the pod's log_directory. */
const logPath: Rule<string> = (value, at) => {
  noNul(value, at);
  const path = posix.normalize(`./${value}`);
  if (path === "." || path === ".." || path.startsWith("../") || path.endsWith("/")) {
    refuse(at, value, "must be a file under the pod's log_directory");
  }
};

export const containerConfig = all(
  message<cri.ContainerConfig>({
    metadata: required(message<cri.ContainerMetadata>({ name: required(name) })),
    image: required(imageSpec),
    command: list(argsMax, arg),
    args: list(argsMax, arg),
    working_dir: absolutePath,
    envs: list(argsMax, env),
    mounts: list(mountsMax, mount),
    devices: list(listMax, device),
    labels: metadata,
    annotations: metadata,
    log_path: logPath,
    linux: message<cri.LinuxContainerConfig>({ resources, security_context: containerSecurity }),
    CDI_devices: list(listMax, message<cri.CDIDevice>({ name: line(512) })),
    stop_signal: oneOf(Signal),
  }),
  processSize,
);
