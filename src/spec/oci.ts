// CRI → OCI runtime spec. Pure: everything it depends on comes in, so that golden files can hold it.
import { CriError } from "../base/errors.ts";
import { toBigInt } from "../base/int64.ts";
import { jsonText } from "../base/json.ts";
import { runtime } from "../proto/messages.js";
import type {
  ContainerConfig,
  LinuxContainerSecurityContext,
  NamespaceOption,
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
import type { OciNamespace, OciProcess, OciSpec } from "./oci_types.ts";
import { processArgs, processEnv, workingDir } from "./process.ts";
import { ociResources, oomScoreAdj, sandboxOomScoreAdj } from "./resources.ts";
import { apparmorProfile, maskedPaths, seccompFilter } from "./security.ts";
import type { SelinuxLabels } from "./selinux.ts";
import { userNamespace, type UserNamespace } from "./userns.ts";
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

const { NamespaceMode } = runtime.v1;

/** Of the specification, not of a runtime: 1.0.2 is what runc 1.1 knows. */
const ociVersion = "1.0.2";

/** What the specs of a container and of a pod's pause container both depend on. */
type SpecInput = {
  sandbox: SandboxInfo;
  image: ImageProcess;
  host: HostInfo;
  handler: HandlerSettings;
  defaults: ContainerDefaults;
  /** CgroupDriver.containerCgroupsPath(). */
  cgroupsPath: string;
  rootfsPath: string;
  /** The pod's HOSTNAME, as the container sees it. */
  hostname: string;
  /** CgroupDriver.containerAnnotations(). */
  runtimeAnnotations: Record<string, string>;
  /** Absent: nothing is labelled. */
  selinux?: SelinuxLabels;
};

export type ContainerSpecInput = SpecInput & {
  id: string;
  config: ContainerConfig;
  resolved: ResolvedInputs;
  runtime: RuntimeSupport;
  /** For pid mode TARGET: the init of the target container. */
  targetPid?: number;
};

/**
 * The spec of a container in a pod.
 * @throws CriError INVALID_ARGUMENT for a config that cannot be run, FAILED_PRECONDITION for one that
 * this host or runtime cannot run.
 */
export function containerSpec(input: ContainerSpecInput): OciSpec {
  const { config, sandbox, resolved, host } = input;
  const asked = config.linux?.security_context;
  const security = asked ?? {};
  const privileged = security.privileged === true;
  checkSecurity(security, sandbox);
  const resources = config.linux?.resources ?? {};
  const process = containerProcess(input, security, resources.oom_score_adj);
  const { uid = 0, gid = 0 } = input.defaults.deviceOwnership ? runAs(security) : {};
  const userns = userNamespaceOf(sandbox);
  const devices = containerDevices(config, resolved, {
    privileged: privileged && !input.handler.privilegedWithoutHostDevices,
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
      namespaces: containerNamespaces(input, security),
      ...userns,
      devices: devices.nodes,
      cgroupsPath: input.cgroupsPath,
      resources: ociResources(resources, devices.rules, host),
      ...(seccomp === undefined ? {} : { seccomp }),
      ...(rootfsPropagation === undefined ? {} : { rootfsPropagation }),
      ...maskedPaths(asked),
      ...mountLabel(input.selinux),
    },
  };
  const based = overBase(input.handler.baseSpec, spec, privileged);
  if (resolved.cdi === undefined) return based;
  return applyCdi(based, resolved.cdi, userns);
}

export type SandboxSpecInput = SpecInput & {
  resolved: Pick<ResolvedInputs, "passwd" | "group" | "seccompProfile" | "apparmorProfiles">;
};

/** The spec of a pod's pause container: first process of the pid namespace that the pod shares. */
export function sandboxSpec(input: SandboxSpecInput): OciSpec {
  const { sandbox, host } = input;
  const security = { ...sandbox.config.linux?.security_context, privileged: false };
  const caps = capabilities({ drop_capabilities: ["ALL"] }, false, host.capabilities);
  const seccomp = seccompFilter(security, {
    bounding: caps.bounding,
    profileText: input.resolved.seccompProfile,
    host,
  });
  // As its pod's containers': the default profile lets them signal only what runs under it, too.
  const apparmor = apparmorProfile(security, host, input.resolved.apparmorProfiles ?? []);
  const user = resolveUser({ security, imageUser: input.image.User ?? "", ...input.resolved });
  return {
    ociVersion,
    process: {
      user,
      args: processArgs({}, input.image),
      env: processEnv({ config: {}, image: input.image, hostname: input.hostname }),
      cwd: workingDir({}, input.image),
      capabilities: caps,
      noNewPrivileges: true,
      ...(apparmor === undefined ? {} : { apparmorProfile: apparmor }),
      ...processLabel(input.selinux, sandbox.config.linux?.security_context?.privileged),
      // Never an error: a daemon without CAP_SYS_RESOURCE runs pods all the same.
      oomScoreAdj: oomScoreAdj(BigInt(sandboxOomScoreAdj), host, true),
    },
    root: { path: input.rootfsPath, readonly: true },
    mounts: sandboxMounts(sandbox.files, sandbox.namespaces, host),
    annotations: {
      ...podAnnotations(sandbox, input.handler),
      "io.kubernetes.cri.container-type": "sandbox",
      ...input.runtimeAnnotations,
    },
    linux: {
      namespaces: [...podNamespaces(sandbox, host, false), { type: "pid" }, { type: "mount" }],
      ...userNamespaceOf(sandbox),
      devices: [],
      cgroupsPath: input.cgroupsPath,
      resources: ociResources({}, [{ allow: false, access: "rwm" }], host),
      ...(seccomp === undefined ? {} : { seccomp }),
      ...maskedPaths(undefined),
      ...mountLabel(input.selinux),
    },
  };
}

function containerProcess(
  input: ContainerSpecInput,
  security: LinuxContainerSecurityContext,
  oomScore: Parameters<typeof toBigInt>[0],
): OciProcess {
  const { config, image, resolved, host, defaults } = input;
  const apparmor = apparmorProfile(security, host, resolved.apparmorProfiles ?? []);
  const adjusted = oomScoreAdj(toBigInt(oomScore), host, defaults.restrictOomScoreAdj);
  return {
    terminal: config.tty === true,
    user: {
      ...resolveUser({
        security,
        imageUser: image.User ?? "",
        passwd: resolved.passwd,
        group: resolved.group,
      }),
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
    oomScoreAdj: adjusted,
  };
}

/** Who is privileged runs unconfined; its files keep the label that the pod's others can read. */
function processLabel(
  selinux: SelinuxLabels | undefined,
  privileged: boolean | null | undefined,
): Pick<OciProcess, "selinuxLabel"> {
  return selinux === undefined || privileged ? {} : { selinuxLabel: selinux.process };
}

function mountLabel(selinux: SelinuxLabels | undefined): { mountLabel?: string } {
  return selinux === undefined ? {} : { mountLabel: selinux.mount };
}

function checkSecurity(security: LinuxContainerSecurityContext, sandbox: SandboxInfo): void {
  if (security.privileged && !sandbox.config.linux?.security_context?.privileged) {
    throw new CriError(
      "FAILED_PRECONDITION",
      "a privileged container needs a privileged pod (security_context.privileged of its sandbox)",
    );
  }
  checkNamespaces(security.namespace_options, sandbox);
}

/** The pod decides about all namespaces but the pids'; a container can only say the same. */
function checkNamespaces(options: NamespaceOption | null | undefined, sandbox: SandboxInfo): void {
  if (!options?.userns_options) return;
  const [own, pods] = [
    userNamespace(options),
    userNamespace(sandbox.config.linux?.security_context?.namespace_options),
  ].map((mappings) => jsonText(mappings));
  if (own === pods) return;
  throw new CriError(
    "INVALID_ARGUMENT",
    `namespace_options.userns_options: ${own ?? "the node's ids"}, and the pod has ${pods ?? "the node's"}`,
  );
}

/**
 * Whether the pod's containers share one pid namespace, which needs a pause container. POD is the
 * mode's zero value: it counts only where namespace_options says anything at all.
 */
export function sharesPidNamespace(config: PodSandboxConfig): boolean {
  const options = config.linux?.security_context?.namespace_options;
  return options ? (options.pid ?? NamespaceMode.POD) === NamespaceMode.POD : false;
}

function containerNamespaces(
  input: ContainerSpecInput,
  security: LinuxContainerSecurityContext,
): OciNamespace[] {
  const { sandbox, host } = input;
  const result = podNamespaces(sandbox, host, security.privileged === true);
  const pid = pidNamespace(input, security);
  if (pid !== undefined) result.push(pid);
  result.push({ type: "mount" });
  return result;
}

function pidNamespace(
  input: ContainerSpecInput,
  security: LinuxContainerSecurityContext,
): OciNamespace | undefined {
  const shared = input.sandbox.namespaces.pid;
  const options = security.namespace_options;
  const mode = options ? (options.pid ?? NamespaceMode.POD) : undefined;
  switch (mode) {
    case undefined:
      return shared === undefined ? { type: "pid" } : { type: "pid", path: shared };
    case NamespaceMode.POD:
      if (shared !== undefined) return { type: "pid", path: shared };
      throw new CriError(
        "FAILED_PRECONDITION",
        "pid mode POD: this pod was made without a shared pid namespace (its own namespace_options.pid is not POD)",
      );
    case NamespaceMode.CONTAINER:
      return { type: "pid" };
    case NamespaceMode.NODE:
      return undefined;
    case NamespaceMode.TARGET:
      if (input.targetPid !== undefined) {
        return { type: "pid", path: `/proc/${input.targetPid}/ns/pid` };
      }
      throw new CriError("FAILED_PRECONDITION", "pid mode TARGET: target_id is not running");
    default:
      throw new CriError("INVALID_ARGUMENT", `unknown pid namespace mode ${String(mode)}`);
  }
}

function podNamespaces(sandbox: SandboxInfo, host: HostInfo, privileged: boolean): OciNamespace[] {
  const { user, net, ipc, uts } = sandbox.namespaces;
  const result: OciNamespace[] = [];
  if (user !== undefined) result.push({ type: "user", path: user });
  if (net !== undefined) result.push({ type: "network", path: net });
  if (ipc !== undefined) result.push({ type: "ipc", path: ipc });
  if (uts !== undefined) result.push({ type: "uts", path: uts });
  if (host.cgroupVersion === 2 && !privileged) result.push({ type: "cgroup" });
  return result;
}

/** Not every runtime reads the mappings of a namespace that it joins. */
function userNamespaceOf(sandbox: SandboxInfo): UserNamespace | undefined {
  if (sandbox.namespaces.user === undefined) return undefined;
  return userNamespace(sandbox.config.linux?.security_context?.namespace_options);
}

// VM runtimes read ours to tell pods and containers apart.
function podAnnotations(sandbox: SandboxInfo, handler: HandlerSettings): Record<string, string> {
  const metadata = sandbox.config.metadata ?? {};
  return {
    ...passedAnnotations(sandbox.config.annotations, handler.podAnnotations),
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
    "io.kubernetes.cri.container-name": input.config.metadata?.name ?? "",
    "io.kubernetes.cri.image-name":
      input.config.image?.user_specified_image || (input.config.image?.image ?? ""),
    ...input.runtimeAnnotations,
  };
}
