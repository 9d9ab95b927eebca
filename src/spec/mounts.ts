// The mounts of a container: what every one has, the pod's files, and what CRI asks for.
import { posix } from "node:path";
import { CriError } from "../base/errors.ts";
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
import { idMappings } from "./userns.ts";

const { MountPropagation } = runtime.v1;

const mountOptionNames = new Set(["noexec", "nodev", "nosuid"]);

export type MountInput = {
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
 * All mounts, parents before what lies under them.
 * @throws CriError INVALID_ARGUMENT or FAILED_PRECONDITION naming the mount.
 */
export function containerMounts(input: MountInput): {
  mounts: OciMount[];
  rootfsPropagation?: "rslave" | "rshared";
} {
  const asked = (input.config.mounts ?? []).map((mount, index) =>
    criMount(mount, input.resolved.mounts[index], input.runtime),
  );
  const destinations = new Set(asked.map((mount) => mount.destination));
  // Whoever mounts a /dev or /sys of their own gets nothing of ours into it but the pod's files,
  // which give way only to a mount at the very same place.
  const based = baseMounts(input.base, systemMounts(input));
  const uncovered = (mount: OciMount) => !covered(mount.destination, destinations);
  const files = podMounts(input.files, input.readonlyRootfs).filter(
    (mount) => !destinations.has(mount.destination),
  );
  const volumes = (input.resolved.volumes ?? []).map(({ path, source }) =>
    mount(path, "bind", source, ["rbind", "rprivate", "rw"]),
  );
  const taken = new Set([...asked, ...volumes, ...files].map(({ destination }) => destination));
  const more = based.more.filter((mount) => !taken.has(mount.destination));
  const rest = [...more, ...files, ...volumes, ...asked].sort(
    (a, b) => depth(a.destination) - depth(b.destination),
  );
  const propagation = rootfsPropagation(input.config.mounts ?? []);
  return {
    mounts: [...based.system.filter(uncovered), ...rest],
    ...(propagation === undefined ? {} : { rootfsPropagation: propagation }),
  };
}

/** A pause container's mounts. */
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
  // Only who is privileged shares the node's cgroup namespace (oci.ts).
  if (privileged) cgroupOptions.push(...host.cgroupOptions);
  const sysOptions = ["nosuid", "noexec", "nodev", access];
  // A sysfs shows a network, and only who owns that may mount one: a user namespace of a pod's own
  // does not own the node's.
  const sys =
    user !== undefined && net === undefined
      ? mount("/sys", "bind", "/sys", ["rbind", ...sysOptions])
      : mount("/sys", "sysfs", "sysfs", sysOptions);
  return [
    mount("/proc", "proc", "proc", ["nosuid", "noexec", "nodev"]),
    mount("/dev", "tmpfs", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
    mount("/dev/pts", "devpts", "devpts", [
      "nosuid",
      "noexec",
      "newinstance",
      "ptmxmode=0666",
      "mode=0620",
      "gid=5",
    ]),
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
 * What can be told of mounts before anything is made for them, where fields depend on each other.
 * @throws CriError INVALID_ARGUMENT, or FAILED_PRECONDITION for what the runtime lacks.
 */
export function checkMounts(mounts: readonly Mount[], support: RuntimeSupport): void {
  for (const mount of mounts) checkMount(mount, support);
}

function checkMount(asked: Mount, support: RuntimeSupport): void {
  const what = mountName(asked);
  const destination = posix.normalize(asked.container_path ?? "");
  if (!posix.isAbsolute(destination) || destination === "/") {
    throw invalid(`${what}: container_path must be absolute and not the root itself`);
  }
  checkSource(asked, what);
  if (asked.recursive_read_only) checkRecursive(asked, support, what);
  for (const option of asked.mount_options ?? []) {
    if (mountOptionNames.has(option)) continue;
    const known = [...mountOptionNames].join(", ");
    throw invalid(`${what}: mount option "${option}" is not one of ${known}`);
  }
}

function checkSource(asked: Mount, what: string): void {
  const { host_path: hostPath, image, image_sub_path: subPath } = asked;
  if (!image) {
    // A sub path may stand there all the same: kubelets send that of any volume.
    if (!hostPath) throw invalid(`${what}: it has neither host_path nor image`);
    return;
  }
  if (hostPath) throw invalid(`${what}: image and host_path exclude each other`);
  if (!image.image) throw invalid(`${what}: its image has no name`);
  if (!asked.readonly) throw invalid(`${what}: an image can only be mounted read-only`);
  if (!subPath) return;
  if (posix.isAbsolute(subPath) || subPath.split("/").includes("..")) {
    throw invalid(`${what}: image_sub_path "${subPath}" is not a path inside the image`);
  }
}

function checkRecursive(asked: Mount, support: RuntimeSupport, what: string): void {
  if (!asked.readonly) throw invalid(`${what}: recursive_read_only needs readonly`);
  if ((asked.propagation ?? 0) !== MountPropagation.PROPAGATION_PRIVATE) {
    throw invalid(`${what}: recursive_read_only needs private propagation`);
  }
  if (!support.recursiveReadOnlyMounts) {
    // A kubelet knows it by the first word (cri-api, pkg/errors).
    throw new CriError(
      "FAILED_PRECONDITION",
      `RROUnsupported: ${what}: recursive_read_only needs Linux 5.12 and a runtime whose features list "rro"`,
    );
  }
}

/** How messages call a mount: as it was asked for. */
export function mountName({ container_path: path }: Mount): string {
  return `mount at ${quoted(path ?? "")}`;
}

function criMount(asked: Mount, fact: MountSource | undefined, support: RuntimeSupport): OciMount {
  checkMount(asked, support);
  const what = mountName(asked);
  if (fact === undefined) throw invalid(`${what}: it has no source`);
  const options = [
    "rbind",
    propagationOption(asked, fact, what),
    asked.recursive_read_only ? "rro" : asked.readonly ? "ro" : "rw",
    ...(asked.mount_options ?? []),
  ];
  const destination = stripSlash(posix.normalize(asked.container_path!));
  const result = mount(destination, "bind", fact.source, options);
  // An image's layers have the pod's ids already.
  return asked.image ? result : addMappings(result, asked, support, what);
}

function propagationOption(asked: Mount, fact: MountSource, what: string): string {
  const propagation = asked.propagation ?? MountPropagation.PROPAGATION_PRIVATE;
  const shared = fact.propagation === "shared" || fact.propagation === "slave+shared";
  switch (propagation) {
    case MountPropagation.PROPAGATION_PRIVATE:
      return "rprivate";
    case MountPropagation.PROPAGATION_HOST_TO_CONTAINER:
      if (!shared && fact.propagation !== "slave") throw notPropagating(what, fact, "or slave ");
      return "rslave";
    case MountPropagation.PROPAGATION_BIDIRECTIONAL:
      if (!shared) throw notPropagating(what, fact, "");
      return "rshared";
  }
}

function notPropagating(what: string, fact: MountSource, alternative: string): CriError {
  return new CriError(
    "FAILED_PRECONDITION",
    `${what}: its propagation needs ${fact.source} on a shared ${alternative}mount, and it is on a ${fact.propagation} one (try: mount --make-rshared on the mount that holds it)`,
  );
}

function addMappings(
  result: OciMount,
  asked: Mount,
  support: RuntimeSupport,
  what: string,
): OciMount {
  const uidMappings = idMappings(asked.uidMappings);
  const gidMappings = idMappings(asked.gidMappings);
  if (uidMappings.length === 0 && gidMappings.length === 0) return result;
  if (!support.idmapMounts) {
    throw new CriError(
      "FAILED_PRECONDITION",
      `${what}: id mappings need a runtime with id-mapped mounts (runc 1.2 or newer)`,
    );
  }
  return { ...result, uidMappings, gidMappings };
}

/** Propagation into or out of a container needs the rootfs itself to take part. */
function rootfsPropagation(mounts: readonly Mount[]): "rslave" | "rshared" | undefined {
  const asked = new Set(mounts.map((mount) => mount.propagation));
  if (asked.has(MountPropagation.PROPAGATION_BIDIRECTIONAL)) return "rshared";
  return asked.has(MountPropagation.PROPAGATION_HOST_TO_CONTAINER) ? "rslave" : undefined;
}

function covered(path: string, destinations: Set<string>): boolean {
  for (let at = path; at !== "/"; at = posix.dirname(at)) if (destinations.has(at)) return true;
  return false;
}

function mount(destination: string, type: string, source: string, options: string[]): OciMount {
  return { destination, type, source, options };
}

function depth(path: string): number {
  return path.split("/").length;
}

function stripSlash(path: string): string {
  return path.endsWith("/") ? path.slice(0, -1) : path;
}

function invalid(message: string): CriError {
  return new CriError("INVALID_ARGUMENT", message);
}
