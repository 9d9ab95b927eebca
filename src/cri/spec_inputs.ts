// Collects the inputs of a container's OCI spec from records, configuration, host and image.
import { CriError } from "../base/errors.ts";
import type { ImageRecord, RootfsOwner } from "../image/store.ts";
import { lookupContainer } from "../node/container_lookup.ts";
import { makeVolumes } from "../node/image_volumes.ts";
import { isNodesNamespace } from "../node/namespaces.ts";
import type { ContainerConfig } from "../proto/types.ts";
import { cdiNames } from "../spec/cdi.ts";
import { namespaceOptions } from "../spec/namespace_options.ts";
import { containerSecurity, seccompDefault } from "../spec/node_security.ts";
import type {
  CdiEdits,
  ContainerDefaults,
  ResolvedInputs,
  PodNamespaces,
  SandboxInfo,
} from "../spec/spec_inputs.ts";
import type { OciSpec } from "../spec/oci_types.ts";
import { podSysctls } from "../spec/sysctls.ts";
import { guestTraits } from "../shim/guests.ts";
import type { Container } from "../state/container.ts";
import { isInGuest, type Sandbox } from "../state/sandbox.ts";
import { processLimit } from "../sys/process.ts";
import { filesOfPod, stepSignal, type Call, type Context } from "./context.ts";
import { requireTargetPid, targetIdOf } from "./preconditions.ts";
import { labelFiles } from "./selinux.ts";

export function sandboxInfo(context: Context, sandbox: Sandbox): SandboxInfo {
  return {
    id: sandbox.id,
    config: sandbox.config,
    namespaces: isInGuest(sandbox) ? guestPaths(context, sandbox) : podNamespaces(sandbox),
    files: filesOfPod(context, sandbox),
  };
}

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

/**
 * Returns the same paths as containerd. Runtimes with a guest only read from them what containers share: a path of a
 * pid namespace tells Kata that the pod has one. Wasm runtimes, which have no kernel of their own, join the namespaces:
 * those of the node, in which a shim's own process is, are replaced by new ones.
 */
function guestPaths(context: Context, sandbox: Sandbox): PodNamespaces {
  const { config, namespaces, pause } = sandbox;
  const net = namespaces.net?.path;
  if (!pause?.pid) return { net };
  const { ipc, network, pid } = namespaceOptions(config);
  const joins = !hasKernel(context, sandbox);
  const path = (kind: "ipc" | "uts" | "pid") => {
    const file = `/proc/${pause.pid}/ns/${kind}`;
    return joins && isNodesNamespace(file, kind) ? "" : file;
  };
  return {
    net,
    ipc: ipc === "pod" ? path("ipc") : undefined,
    uts: network === "pod" ? path("uts") : undefined,
    pid: pid === "pod" ? path("pid") : undefined,
  };
}

function hasKernel({ handlers }: Context, { runtimeHandler }: Sandbox): boolean {
  const shim = handlers.get(runtimeHandler)?.command.shim;
  return shim !== undefined && guestTraits(shim).hasKernel;
}

/**
 * @throws CriError FAILED_PRECONDITION for a pod whose containers share a pid namespace, if its shim gave a process of
 * the node's as the pod's first one.
 */
export function requireOwnPids({ namespaces, id }: SandboxInfo): void {
  if (namespaces.pid !== "") return;
  const message = `sandbox ${id}: the process that its shim gave as its first one is in the node's pid namespace, which containers would join: set shareProcessNamespace to false in the pod's spec, or choose another runtime handler`;
  throw new CriError("FAILED_PRECONDITION", message);
}

export function sysctlsOf({ config }: Context, sandbox: Sandbox): Record<string, string> {
  return podSysctls(sandbox.config, {
    unprivilegedPorts: config.enableUnprivilegedPorts,
    unprivilegedIcmp: config.enableUnprivilegedIcmp,
  });
}

export function containerDefaults({ config }: Context): ContainerDefaults {
  return {
    rlimits: config.defaultUlimits,
    restrictOomScoreAdj: config.restrictOomScoreAdj,
    deviceOwnership: config.deviceOwnershipFromSecurityContext,
    umask: config.nativeUmask,
  };
}

/**
 * Adds the limit of open files to the final spec of a container, unless default-ulimits, the base spec or an NRI plugin
 * has set one. The hard limit is the one of the process that starts containers: the monitor may be older than this
 * daemon and have a lower one. A guest's processes have the limits of the guest.
 */
export function withOpenFilesLimit(
  { monitor, host }: Pick<Context, "monitor" | "host">,
  { runtimeKind }: Pick<Container, "runtimeKind">,
  spec: OciSpec,
): OciSpec {
  const type = "RLIMIT_NOFILE";
  const { rlimits = [] } = spec.process;
  if (isInGuest({ runtimeKind }) || rlimits.some((rlimit) => rlimit.type === type)) return spec;
  const limit = processLimit(monitor.pid ?? process.pid, "open files");
  // The monitor has just ended, or the kernel has no limit.
  if (limit === undefined || limit.hard === Infinity) return spec;
  const soft = Math.min(host.openFilesSoft, limit.hard);
  const own = { type, soft: BigInt(soft), hard: BigInt(limit.hard) };
  return { ...spec, process: { ...spec.process, rlimits: [...rlimits, own] } };
}

/** The requested config, with daemon.json's settings for what it leaves open. */
export function configuredContainer({ config }: Context, container: Container): Container {
  const { linux } = container.config;
  const security_context = containerSecurity(linux?.security_context, config);
  return { ...container, config: { ...container.config, linux: { ...linux, security_context } } };
}

export function configuredSandbox({ config }: Context, sandbox: Sandbox): Sandbox {
  const { linux } = sandbox.config;
  const requested = linux?.security_context;
  const security_context = { ...requested, ...seccompDefault(requested, config) };
  return { ...sandbox, config: { ...sandbox.config, linux: { ...linux, security_context } } };
}

/** For pid mode TARGET: the first process of the target. Throws as requireTargetPid() does. */
export function targetPid(context: Context, container: Container): number | undefined {
  const targetId = targetIdOf(namespaceOptions(container.config));
  if (targetId === undefined) return undefined;
  if (isInGuest(container)) {
    const message =
      "pid mode TARGET: containers in a guest cannot join another's pid namespace: set shareProcessNamespace in the pod's spec, or do without a target";
    throw new CriError("FAILED_PRECONDITION", message);
  }
  return requireTargetPid(container, context.containers.get(targetId));
}

/** imageMounts: mount points of the mounts that have an image, by index in config.mounts. */
export type MountedImages = { rootfsPath: string; imageMounts: ReadonlyMap<number, string> };

type Parts = MountedImages & { image: ImageRecord; owner?: RootfsOwner; call: Call };

/** Collects the inputs of a container's spec; creates and labels missing mount sources and the image's volumes. */
export async function prepareContainerInputs(
  context: Context,
  container: Container,
  { image, owner, call, ...mounted }: Parts,
): Promise<ResolvedInputs> {
  const { id, config } = container;
  const { ignoreImageDefinedVolumes, rejectMissingMountSources: rejectMissing } = context.config;
  const cdi = await cdiEdits(context, config);
  const signal = stepSignal(context, call);
  const { defaultProfile } = context.host.apparmor ?? {};
  const options = { ...mounted, rejectMissing, defaultProfile, signal };
  const inputs = await lookupContainer(config, options);
  const volumes = await makeVolumes({
    container: id,
    folder: context.containers.folderOf(id),
    rootfs: mounted.rootfsPath,
    paths: ignoreImageDefinedVolumes ? [] : Object.keys(image.config.Volumes ?? {}),
    destinations: (config.mounts ?? []).map((mount) => mount.container_path ?? ""),
    owner,
    limited: (folder, fill) =>
      context.images.fillLimited(context.containers.folderOf(id), folder, fill),
    signal: stepSignal(context, call),
    log: context.log,
  });
  await labelFiles(context, container, { mounts: inputs.mounts, volumes, call });
  return { ...inputs, cdi, volumes };
}

/** With CDI off, device annotations are ignored, as anybody may set them; CDI_devices is an error. */
async function cdiEdits(context: Context, config: ContainerConfig): Promise<CdiEdits | undefined> {
  const { enableCdi, cdiSpecDirs } = context.config;
  if (enableCdi) {
    const names = cdiNames(config);
    if (names.length === 0) return undefined;
    const { resolveCdi } = await import("../node/cdi.ts");
    return await resolveCdi(names, cdiSpecDirs);
  }
  const [first] = config.CDI_devices ?? [];
  if (first === undefined) return undefined;
  throw new CriError(
    "FAILED_PRECONDITION",
    `CDI_devices: ${first.name}: CDI is off (set enable-cdi in daemon.json)`,
  );
}
