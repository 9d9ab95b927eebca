// Converts CRI configurations to OCI runtime specs. Pure, so that golden files can test it.
import { toBigInt } from "../base/int64.ts";
import { jsonText } from "../base/json.ts";
import type {
  ContainerConfig,
  LinuxContainerSecurityContext,
  PodSandboxConfig,
} from "../proto/types.ts";
import { passedAnnotations } from "./annotations.ts";
import { overBase } from "./base_spec.ts";
import { capabilities } from "./capabilities.ts";
import { applyCdi } from "./cdi.ts";
import { containerDevices } from "./devices.ts";
import type {
  ContainerDefaults,
  ResolvedInputs,
  HandlerSettings,
  HostInfo,
  ImageProcess,
  RuntimeSupport,
  SandboxInfo,
} from "./spec_inputs.ts";
import { containerMounts, sandboxMounts } from "./mounts.ts";
import { containerPidMode, namespaceOptions } from "./namespace_options.ts";
import {
  nonEmpty,
  type OciLinux,
  type OciNamespace,
  type OciProcess,
  type OciResources,
  type OciSpec,
} from "./oci_types.ts";
import { processArgs, processEnv, workingDir } from "./process.ts";
import { invalid, unsupported } from "./refusals.ts";
import { ociResources, oomScoreAdj, sandboxOomScoreAdj } from "./resources.ts";
import { guestAnnotations, guestNamespaces, type GuestSettings } from "./sandboxed.ts";
import { apparmorProfile, maskedPaths, seccompFilter } from "./security.ts";
import type { SelinuxLabels } from "./selinux.ts";
import type { UserNamespace } from "./userns.ts";
import { resolveUser, runAs } from "./users.ts";

export type {
  OciHook,
  OciNamespace,
  OciProcess,
  OciResources,
  OciSeccomp,
  OciSpec,
} from "./oci_types.ts";
export { ociJson, parseOciSpec } from "./oci_types.ts";
export { execProcess } from "./process.ts";

/** Version of the OCI specification; 1.0.2 is what runc 1.1 supports. */
const ociVersion = "1.0.2";

/** Inputs common to the specs of containers and of pause containers. */
type SpecInput = {
  sandbox: SandboxInfo;
  image: ImageProcess;
  host: HostInfo;
  handler: HandlerSettings;
  defaults: ContainerDefaults;
  /** CgroupDriver.containerCgroupsPath(). */
  cgroupsPath: string;
  rootfsPath: string;
  /** Value of $HOSTNAME in the container. */
  hostname: string;
  /** The annotations that CgroupDriver.containerAnnotations() returns. */
  runtimeAnnotations: Record<string, string>;
  /** Absent: processes and mounts get no SELinux labels. */
  selinux?: SelinuxLabels;
};

export type ContainerSpecInput = SpecInput & {
  id: string;
  config: ContainerConfig;
  /** The pod's config in this request: since its start, an ephemeral container may have made the pod privileged. */
  requestedPod?: PodSandboxConfig | null | undefined;
  resolved: ResolvedInputs;
  runtime: RuntimeSupport;
  /** For pid mode TARGET: pid of the target container's init. */
  targetPid?: number;
};

/**
 * Returns the spec of a container in a pod.
 * @throws CriError INVALID_ARGUMENT for an invalid config, FAILED_PRECONDITION for an unsupported one.
 */
export function containerSpec(input: ContainerSpecInput): OciSpec {
  const { config, sandbox, resolved, host } = input;
  const requested = config.linux?.security_context;
  const security = requested ?? {};
  const privileged = security.privileged === true;
  checkSecurity(input);
  const resources = config.linux?.resources ?? {};
  const process = containerProcess(input, security, resources.oom_score_adj);
  const { uid = 0, gid = 0 } = input.defaults.deviceOwnership ? runAs(security) : {};
  const userns = userNamespaceOf(sandbox);
  const devices = containerDevices(config, resolved, {
    hasHostDevices: privileged && !input.handler.privilegedWithoutHostDevices,
    allAllowed:
      privileged &&
      (!input.handler.privilegedWithoutHostDevices || input.handler.privilegedAllDevicesAllowed),
    owner: { uid, gid },
    userns: userns !== undefined,
  });
  const readonly = security.readonly_rootfs === true;
  const { mounts, rootfsPropagation } = containerMounts({
    config,
    resolved,
    files: sandbox.files,
    namespaces: sandbox.namespaces,
    host,
    runtime: input.runtime,
    base: input.handler.baseSpec,
    privileged,
    readonlyRootfs: readonly,
  });
  const seccomp = seccompFilter(security, {
    bounding: process.capabilities.bounding,
    profileText: resolved.seccompProfile,
    host,
  });
  const spec: OciSpec = {
    ociVersion,
    process,
    root: { path: input.rootfsPath, readonly },
    mounts: [...mounts, ...devices.mounts],
    annotations: containerAnnotations(input),
    linux: {
      namespaces: containerNamespaces(input, privileged),
      ...userns,
      devices: devices.nodes,
      cgroupsPath: input.cgroupsPath,
      resources: ociResources(resources, devices.rules, host),
      ...(seccomp === undefined ? {} : { seccomp }),
      ...(rootfsPropagation === undefined ? {} : { rootfsPropagation }),
      ...maskedPaths(requested),
      ...mountLabel(input.selinux),
    },
  };
  const based = overBase(input.handler.baseSpec, spec, privileged);
  return resolved.cdi === undefined ? based : applyCdi(based, resolved.cdi, userns);
}

type PodSpec = Pick<OciSpec, "ociVersion" | "annotations"> & { linux: Partial<OciLinux> };

export type SandboxSpecInput = SpecInput & {
  /** Present for the sandbox container of a pod in a guest; without it, the spec is a pause container's. */
  guest?: GuestSettings;
  resolved: Pick<ResolvedInputs, "passwd" | "group" | "seccompProfile" | "apparmorProfiles">;
};

/**
 * Returns the spec of a pod's pause container, the first process of the pod's shared pid namespace, or of the
 * sandbox container that makes the pod's guest.
 */
export function sandboxSpec(input: SandboxSpecInput): OciSpec {
  const { sandbox, host, guest } = input;
  const security = { ...sandbox.config.linux?.security_context, privileged: false };
  const caps = capabilities({ drop_capabilities: ["ALL"] }, false, host.capabilities);
  const seccomp = seccompFilter(security, {
    bounding: caps.bounding,
    profileText: input.resolved.seccompProfile,
    host,
  });
  // Same profile as the pod's containers: the default profile lets them signal only processes under it.
  const apparmor = apparmorProfile(security, host, input.resolved.apparmorProfiles ?? []);
  const user = resolveUser({ security, imageUser: input.image.User ?? "", ...input.resolved });
  const hostname = sandbox.config.hostname ?? "";
  return {
    ociVersion,
    ...(guest !== undefined && hostname !== "" ? { hostname } : {}),
    process: {
      user,
      args: processArgs({}, input.image),
      env: processEnv({ config: {}, image: input.image, hostname: input.hostname }),
      cwd: workingDir({}, input.image),
      capabilities: caps,
      noNewPrivileges: true,
      ...(apparmor === undefined ? {} : { apparmorProfile: apparmor }),
      ...processLabel(input.selinux, sandbox.config.linux?.security_context?.privileged),
      // Clamped, never an error: pods must also run when the daemon lacks CAP_SYS_RESOURCE.
      oomScoreAdj: oomScoreAdj(BigInt(sandboxOomScoreAdj), host, true),
    },
    root: { path: input.rootfsPath, readonly: true },
    mounts: sandboxMounts(sandbox.files, sandbox.namespaces, host),
    annotations: {
      ...podAnnotations(sandbox, input.handler),
      ...(guest === undefined ? {} : guestAnnotations(sandbox.config, guest)),
      "io.kubernetes.cri.container-type": "sandbox",
      ...input.runtimeAnnotations,
    },
    linux: {
      namespaces:
        guest === undefined
          ? [
              ...podNamespaces(sandbox),
              ...cgroupNamespace(host, false),
              { type: "pid" },
              { type: "mount" },
            ]
          : guestNamespaces(sandbox, host),
      ...userNamespaceOf(sandbox),
      ...nonEmpty("sysctl", guest?.sysctls ?? {}),
      devices: [],
      cgroupsPath: input.cgroupsPath,
      resources: sandboxResources(host, guest !== undefined),
      ...(seccomp === undefined ? {} : { seccomp }),
      ...maskedPaths(undefined),
      ...mountLabel(input.selinux),
    },
  };
}

/**
 * Describes a pod that has no container of its own as the spec of one would: CRI clients read a pod's namespaces
 * there. cgroupsPath: the pod's cgroup, if it is known.
 */
export function podSpec(sandbox: SandboxInfo, cgroupsPath: string | undefined): PodSpec {
  return {
    ociVersion,
    annotations: { ...podIdentity(sandbox), "io.kubernetes.cri.container-type": "sandbox" },
    linux: { namespaces: podNamespaces(sandbox), ...userNamespaceOf(sandbox), cgroupsPath },
  };
}

/** A guest's cgroup holds the virtual machine's monitor, which needs devices such as /dev/kvm. */
export function sandboxResources(host: HostInfo, isGuest: boolean): OciResources {
  return ociResources({}, isGuest ? [] : [{ allow: false, access: "rwm" }], host);
}

function containerProcess(
  input: ContainerSpecInput,
  security: LinuxContainerSecurityContext,
  oomScore: Parameters<typeof toBigInt>[0],
): OciProcess {
  const { config, image, resolved, host, defaults } = input;
  const apparmor = apparmorProfile(security, host, resolved.apparmorProfiles ?? []);
  return {
    terminal: config.tty === true,
    user: {
      ...resolveUser({ security, imageUser: image.User ?? "", ...resolved }),
      ...(defaults.umask === undefined ? {} : { umask: defaults.umask }),
    },
    args: processArgs(config, image),
    env: processEnv({ config, image, hostname: input.hostname }),
    cwd: workingDir(config, image),
    capabilities: capabilities(
      security.capabilities,
      security.privileged === true,
      host.capabilities,
    ),
    ...(defaults.rlimits.length > 0 ? { rlimits: defaults.rlimits } : {}),
    noNewPrivileges: security.no_new_privs === true,
    ...(apparmor === undefined ? {} : { apparmorProfile: apparmor }),
    ...processLabel(input.selinux, security.privileged),
    oomScoreAdj: oomScoreAdj(toBigInt(oomScore), host, defaults.restrictOomScoreAdj),
  };
}

/** Privileged processes run unconfined; their mounts keep the label, which the pod's others can read. */
function processLabel(
  selinux: SelinuxLabels | undefined,
  privileged: boolean | null | undefined,
): Pick<OciProcess, "selinuxLabel"> {
  // A guest that knows no SELinux has no label for its processes.
  return !selinux?.process || privileged ? {} : { selinuxLabel: selinux.process };
}

function mountLabel(selinux: SelinuxLabels | undefined): { mountLabel?: string } {
  return selinux === undefined ? {} : { mountLabel: selinux.mount };
}

function checkSecurity({ config, sandbox, requestedPod }: ContainerSpecInput): void {
  const isPrivileged = (one: ContainerConfig | PodSandboxConfig | null | undefined) =>
    one?.linux?.security_context?.privileged === true;
  if (isPrivileged(config) && !isPrivileged(sandbox.config) && !isPrivileged(requestedPod)) {
    throw unsupported(
      "a privileged container needs a privileged pod (set security_context.privileged of its sandbox)",
    );
  }
  // All namespaces but pid are the pod's; a container's options must agree with them.
  const container = namespaceOptions(config);
  if (!container.hasUserOptions) return;
  const pod = namespaceOptions(sandbox.config);
  const [own, pods] = [container.user, pod.user].map((mappings) => jsonText(mappings));
  if (own === pods) return;
  throw invalid(
    `namespace_options.userns_options: ${own ?? "the host's ids"} differs from the pod's: ${pods ?? "the host's ids"}`,
  );
}

function containerNamespaces(input: ContainerSpecInput, privileged: boolean): OciNamespace[] {
  const result = [...podNamespaces(input.sandbox), ...cgroupNamespace(input.host, privileged)];
  const pid = pidNamespace(input);
  if (pid !== undefined) result.push(pid);
  return [...result, { type: "mount" }];
}

function pidNamespace(input: ContainerSpecInput): OciNamespace | undefined {
  const { config, sandbox } = input;
  const shared = sandbox.namespaces.pid;
  const pod = { config: sandbox.config, hasShared: shared !== undefined };
  switch (containerPidMode(config, pod)) {
    case "pod":
      return { type: "pid", path: shared };
    case "container":
      return { type: "pid" };
    case "node":
      return undefined;
    case "target":
      if (input.targetPid === undefined) {
        throw unsupported("pid mode TARGET: target_id is not running");
      }
      return { type: "pid", path: `/proc/${input.targetPid}/ns/pid` };
  }
}

function podNamespaces(sandbox: SandboxInfo): OciNamespace[] {
  const { user, net, ipc, uts } = sandbox.namespaces;
  const result: OciNamespace[] = [];
  if (user !== undefined) result.push({ type: "user", path: user });
  if (net !== undefined) result.push({ type: "network", path: net });
  if (ipc !== undefined) result.push({ type: "ipc", ...(ipc === "" ? {} : { path: ipc }) });
  if (uts !== undefined) result.push({ type: "uts", ...(uts === "" ? {} : { path: uts }) });
  return result;
}

function cgroupNamespace(host: HostInfo, privileged: boolean): OciNamespace[] {
  return host.cgroupVersion === 2 && !privileged ? [{ type: "cgroup" }] : [];
}

/** Returns the pod's mappings: not every runtime reads them from the namespace that it joins. */
function userNamespaceOf(sandbox: SandboxInfo): UserNamespace | undefined {
  if (sandbox.namespaces.user === undefined) return undefined;
  return namespaceOptions(sandbox.config).user;
}

function podAnnotations(sandbox: SandboxInfo, handler: HandlerSettings): Record<string, string> {
  return {
    ...passedAnnotations(sandbox.config.annotations, handler.podAnnotations),
    ...podIdentity(sandbox),
  };
}

/** VM runtimes distinguish pods from containers by these annotations. */
function podIdentity(sandbox: SandboxInfo): Record<string, string> {
  const metadata = sandbox.config.metadata ?? {};
  return {
    "io.kubernetes.cri.sandbox-id": sandbox.id,
    "io.kubernetes.cri.sandbox-name": metadata.name ?? "",
    "io.kubernetes.cri.sandbox-namespace": metadata.namespace ?? "",
    "io.kubernetes.cri.sandbox-uid": metadata.uid ?? "",
  };
}

function containerAnnotations(input: ContainerSpecInput): Record<string, string> {
  const { handler, config } = input;
  return {
    ...passedAnnotations(config.annotations, handler.containerAnnotations),
    ...podAnnotations(input.sandbox, handler),
    "io.kubernetes.cri.container-type": "container",
    "io.kubernetes.cri.container-name": config.metadata?.name ?? "",
    "io.kubernetes.cri.image-name":
      config.image?.user_specified_image || (config.image?.image ?? ""),
    ...input.runtimeAnnotations,
  };
}
