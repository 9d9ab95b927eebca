// From records and configuration to what the spec's pure functions want to be told.
import type { ContainerDefaults, PodNamespaces, SandboxInfo } from "../spec/spec_inputs.ts";
import { podFiles } from "../node/pod_files.ts";
import type { RootfsOwner } from "../image/store.ts";
import { userNamespace } from "../spec/userns.ts";
import type { CgroupPaths } from "../node/cgroup.ts";
import type { Container } from "../state/container.ts";
import type { Sandbox } from "../state/sandbox.ts";
import { podFolder, type Context } from "./context.ts";

function podNamespaces(sandbox: Sandbox): PodNamespaces {
  const { net, ipc, uts, user } = sandbox.namespaces;
  const pid = sandbox.pause?.pid;
  return {
    net: net?.path,
    ipc: ipc?.path,
    uts: uts?.path,
    user: user?.path,
    pid: pid ? `/proc/${pid}/ns/pid` : undefined,
  };
}

export function sandboxInfo(context: Context, sandbox: Sandbox): SandboxInfo {
  const hostIpc = sandbox.namespaces.ipc === undefined;
  return {
    id: sandbox.id,
    config: sandbox.config,
    namespaces: podNamespaces(sandbox),
    files: podFiles(podFolder(context, sandbox.id), hostIpc),
  };
}

/** The other driver's cgroups were of an earlier boot (recovery/cgroup_driver.ts), and went with it. */
export function hasCgroup({ cgroup }: Context, sandbox: Sandbox): boolean {
  return sandbox.cgroup.driver === cgroup.name;
}

/** Where a container's cgroup lies; {} when its pod is not there any more. */
export function containerCgroup(context: Context, container: Container): CgroupPaths {
  const { id, sandboxId, cgroupsPath } = container;
  const sandbox = context.sandboxes.find(sandboxId);
  if (sandbox !== undefined && !hasCgroup(context, sandbox)) return {};
  if (cgroupsPath !== undefined) return context.cgroup.pathsOf(cgroupsPath);
  if (sandbox === undefined) return {};
  return context.cgroup.containerPaths(sandbox.cgroup.parent, sandboxId, id);
}

/** Who a root file system of the pod's belongs to; undefined: the node's own users. */
export function rootfsOwner({ namespaces, config }: Sandbox): RootfsOwner | undefined {
  const asked = userNamespace(config.linux?.security_context?.namespace_options);
  if (asked === undefined || namespaces.user === undefined) return undefined;
  const [uids, gids] = [asked.uidMappings[0]!, asked.gidMappings[0]!];
  return { userns: namespaces.user.path, uid: uids.hostID, gid: gids.hostID, count: uids.size };
}

export function containerDefaults(context: Context): ContainerDefaults {
  const { config } = context;
  return {
    rlimits: config.defaultUlimits,
    restrictOomScoreAdj: config.restrictOomScoreAdj,
    deviceOwnership: config.deviceOwnershipFromSecurityContext,
    umask: config.nativeUmask,
  };
}
