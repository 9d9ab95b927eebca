// Computes a container's mounts: system mounts, the pod's files, image volumes and CRI's mounts.
import { posix } from "node:path";
import { quoted } from "../base/text.ts";
import { runtime } from "../proto/messages.js";
import type { ContainerConfig, Mount } from "../proto/types.ts";
import { baseMounts, type BaseSpec } from "./base_spec.ts";
import type {
  ResolvedInputs,
  HostInfo,
  MountSource,
  PodFiles,
  PodNamespaces,
  RuntimeSupport,
} from "./spec_inputs.ts";
import type { OciMount } from "./oci_types.ts";
import { invalid, unsupported, unsupportedBy } from "./refusals.ts";
import { idMappings } from "./userns.ts";

const { MountPropagation } = runtime.v1;

const ptsOptions = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"];
const mountOptionNames = new Set(["noexec", "nodev", "nosuid"]);

type MountInput = {
  config: ContainerConfig;
  resolved: ResolvedInputs;
  files: PodFiles;
  namespaces: PodNamespaces;
  host: HostInfo;
  runtime: RuntimeSupport;
  base: BaseSpec | undefined;
  privileged: boolean;
  readonlyRootfs: boolean;
};

/**
 * Returns all mounts, parents before children.
 * @throws CriError INVALID_ARGUMENT or FAILED_PRECONDITION naming the mount.
 */
export function containerMounts(input: MountInput): {
  mounts: OciMount[];
  rootfsPropagation?: "rslave" | "rshared";
} {
  const requested = (input.config.mounts ?? []).map((mount, index) =>
    criMount(mount, input.resolved.mounts[index], input.runtime),
  );
  const destinations = new Set(requested.map((mount) => mount.destination));
  // A requested mount on /dev or /sys drops the system mounts below it. The pod's files stay unless a
  // requested mount has exactly their path.
  const based = baseMounts(input.base, systemMounts(input));
  const uncovered = (mount: OciMount) => !covered(mount.destination, destinations);
  const files = podMounts(input.files, input.readonlyRootfs).filter(
    (mount) => !destinations.has(mount.destination),
  );
  const volumes = (input.resolved.volumes ?? []).map(({ path, source }) =>
    mount(path, "bind", source, ["rbind", "rprivate", "rw"]),
  );
  const taken = new Set([...requested, ...volumes, ...files].map(({ destination }) => destination));
  const more = based.more.filter((mount) => !taken.has(mount.destination));
  const rest = [...more, ...files, ...volumes, ...requested].sort(byDepth);
  const propagation = rootfsPropagation(input.config.mounts ?? []);
  return {
    mounts: [...based.system.filter(uncovered), ...rest],
    ...(propagation === undefined ? {} : { rootfsPropagation: propagation }),
  };
}

/** Returns a pause container's mounts. */
export function sandboxMounts(
  files: PodFiles,
  namespaces: PodNamespaces,
  host: HostInfo,
): OciMount[] {
  const system = systemMounts({ privileged: false, namespaces, host });
  return [...system, ...podMounts(files, true)];
}

function systemMounts({
  privileged,
  namespaces: { user, net },
  host,
}: Pick<MountInput, "privileged" | "namespaces" | "host">): OciMount[] {
  const access = privileged ? "rw" : "ro";
  const cgroupOptions = ["nosuid", "noexec", "nodev", "relatime", access];
  // Only privileged containers share the host's cgroup namespace (oci.ts).
  if (privileged) cgroupOptions.push(...host.cgroupOptions);
  const sysOptions = ["nosuid", "noexec", "nodev", access];
  // The kernel lets only the owner of a network namespace mount sysfs: a pod's user namespace does not own
  // the host network, so the host's /sys is bind-mounted.
  const sys =
    user !== undefined && net === undefined
      ? mount("/sys", "bind", "/sys", ["rbind", ...sysOptions])
      : mount("/sys", "sysfs", "sysfs", sysOptions);
  return [
    mount("/proc", "proc", "proc", ["nosuid", "noexec", "nodev"]),
    mount("/dev", "tmpfs", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
    mount("/dev/pts", "devpts", "devpts", ptsOptions),
    mount("/dev/mqueue", "mqueue", "mqueue", ["nosuid", "noexec", "nodev"]),
    sys,
    mount("/sys/fs/cgroup", "cgroup", "cgroup", cgroupOptions),
  ];
}

function podMounts(files: PodFiles, readonlyRootfs: boolean): OciMount[] {
  const options = ["rbind", "rprivate", "nosuid", "nodev", "noexec"];
  const access = readonlyRootfs ? "ro" : "rw";
  return [
    mount("/dev/shm", "bind", files.shm, [...options, "rw"]),
    mount("/etc/hosts", "bind", files.hosts, [...options, access]),
    mount("/etc/hostname", "bind", files.hostname, [...options, access]),
    mount("/etc/resolv.conf", "bind", files.resolvConf, [...options, access]),
  ];
}

/**
 * Checks the mounts' fields against each other before any resource is created.
 * @throws CriError INVALID_ARGUMENT, or FAILED_PRECONDITION for a missing runtime feature.
 */
export function checkMounts(mounts: readonly Mount[], support: RuntimeSupport): void {
  for (const mount of mounts) checkMount(mount, support);
}

function checkMount(requested: Mount, support: RuntimeSupport): void {
  const name = mountName(requested);
  const destination = posix.normalize(requested.container_path ?? "");
  if (!posix.isAbsolute(destination) || destination === "/") {
    throw invalid(`${name}: container_path must be absolute and not "/"`);
  }
  checkSource(requested, name);
  if (requested.recursive_read_only) checkRecursive(requested, support, name);
  for (const option of requested.mount_options ?? []) {
    if (mountOptionNames.has(option)) continue;
    const known = [...mountOptionNames].join(", ");
    throw invalid(`${name}: mount option "${option}" is not one of ${known}`);
  }
}

function checkSource(requested: Mount, name: string): void {
  const { host_path: hostPath, image, image_sub_path: subPath } = requested;
  if (!image) {
    // image_sub_path is ignored here: kubelets set it for every kind of volume.
    if (!hostPath) throw invalid(`${name}: it has neither host_path nor image`);
    return;
  }
  if (hostPath) throw invalid(`${name}: image and host_path exclude each other`);
  if (!image.image) throw invalid(`${name}: its image has no name`);
  if (!requested.readonly) throw invalid(`${name}: an image can only be mounted read-only`);
  if (!subPath) return;
  if (posix.isAbsolute(subPath) || subPath.split("/").includes("..")) {
    throw invalid(`${name}: image_sub_path "${subPath}" is not a path inside the image`);
  }
}

function checkRecursive(requested: Mount, support: RuntimeSupport, name: string): void {
  if (!requested.readonly) throw invalid(`${name}: recursive_read_only needs readonly`);
  if ((requested.propagation ?? 0) !== MountPropagation.PROPAGATION_PRIVATE) {
    throw invalid(`${name}: recursive_read_only needs private propagation`);
  }
  if (!support.recursiveReadOnlyMounts) {
    // The kubelet recognizes this error by its prefix (cri-api, pkg/errors).
    throw unsupportedBy(
      support,
      `RROUnsupported: ${name}: recursive_read_only needs Linux 5.12 and a runtime whose features list "rro"`,
    );
  }
}

/** Names a mount in error messages, by its requested path. */
export function mountName({ container_path: path }: Mount): string {
  return `mount at ${quoted(path ?? "")}`;
}

function criMount(
  requested: Mount,
  resolved: MountSource | undefined,
  support: RuntimeSupport,
): OciMount {
  checkMount(requested, support);
  const name = mountName(requested);
  if (resolved === undefined) throw invalid(`${name}: it has no source`);
  const options = [
    "rbind",
    propagationOption(requested, resolved, name),
    requested.recursive_read_only ? "rro" : requested.readonly ? "ro" : "rw",
    ...(requested.mount_options ?? []),
  ];
  const destination = posix.normalize(requested.container_path!).replace(/\/$/, "");
  const result = mount(destination, "bind", resolved.source, options);
  // Image mounts are already mapped to the pod's ids.
  return requested.image ? result : addMappings(result, requested, support, name);
}

function propagationOption(requested: Mount, resolved: MountSource, name: string): string {
  const propagation = requested.propagation ?? MountPropagation.PROPAGATION_PRIVATE;
  const shared = resolved.propagation === "shared" || resolved.propagation === "slave+shared";
  switch (propagation) {
    case MountPropagation.PROPAGATION_PRIVATE:
      return "rprivate";
    case MountPropagation.PROPAGATION_HOST_TO_CONTAINER:
      if (!shared && resolved.propagation !== "slave")
        throw notPropagating(name, resolved, "or slave ");
      return "rslave";
    case MountPropagation.PROPAGATION_BIDIRECTIONAL:
      if (!shared) throw notPropagating(name, resolved, "");
      return "rshared";
  }
}

function notPropagating(name: string, resolved: MountSource, alternative: string): Error {
  return unsupported(
    `${name}: its propagation needs ${resolved.source} to be on a shared ${alternative}mount, but it is on a ${resolved.propagation} one (try mount --make-rshared on the mount that contains it)`,
  );
}

function addMappings(
  result: OciMount,
  requested: Mount,
  support: RuntimeSupport,
  name: string,
): OciMount {
  const uidMappings = idMappings(requested.uidMappings);
  const gidMappings = idMappings(requested.gidMappings);
  if (uidMappings.length === 0 && gidMappings.length === 0) return result;
  if (!support.idmapMounts) {
    throw unsupportedBy(
      support,
      `${name}: id mappings need a runtime that supports id-mapped mounts (runc 1.2 or newer)`,
    );
  }
  return { ...result, uidMappings, gidMappings };
}

/** Mount events pass into or out of a container only if its rootfs propagates them, too. */
function rootfsPropagation(mounts: readonly Mount[]): "rslave" | "rshared" | undefined {
  const requested = new Set(mounts.map((mount) => mount.propagation));
  if (requested.has(MountPropagation.PROPAGATION_BIDIRECTIONAL)) return "rshared";
  return requested.has(MountPropagation.PROPAGATION_HOST_TO_CONTAINER) ? "rslave" : undefined;
}

function covered(path: string, destinations: Set<string>): boolean {
  for (let at = path; at !== "/"; at = posix.dirname(at)) if (destinations.has(at)) return true;
  return false;
}

function mount(destination: string, type: string, source: string, options: string[]): OciMount {
  return { destination, type, source, options };
}

/** Orders parents before children. */
export function byDepth(a: OciMount, b: OciMount): number {
  return a.destination.split("/").length - b.destination.split("/").length;
}
