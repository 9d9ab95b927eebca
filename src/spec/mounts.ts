// The mounts of a container: what every one has, the pod's files, and what CRI asks for.
import { posix } from "node:path";
import { CriError } from "../base/errors.ts";
import { runtime } from "../proto/messages.js";
import type { ContainerConfig, IDMapping, Mount } from "../proto/types.ts";
import type { ContainerFacts, HostFacts, MountFact, PodFiles, RuntimeFacts } from "./facts.ts";
import type { OciIdMapping, OciMount } from "./oci_types.ts";

const { MountPropagation } = runtime.v1;

const mountOptionNames = new Set(["noexec", "nodev", "nosuid"]);

export type MountInput = {
  config: ContainerConfig;
  facts: ContainerFacts;
  files: PodFiles;
  host: HostFacts;
  runtime: RuntimeFacts;
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
    criMount(mount, input.facts.mounts[index], input.runtime),
  );
  const destinations = new Set(asked.map((mount) => mount.destination));
  // Whoever mounts a /dev or /sys of their own gets nothing of ours into it but the pod's files,
  // which give way only to a mount at the very same place.
  const system = systemMounts(input.privileged).filter(
    (mount) => !covered(mount.destination, destinations),
  );
  const files = podMounts(input.files, input.readonlyRootfs).filter(
    (mount) => !destinations.has(mount.destination),
  );
  const rest = [...files, ...asked].sort((a, b) => depth(a.destination) - depth(b.destination));
  const propagation = rootfsPropagation(input.config.mounts ?? []);
  return {
    mounts: [...system, ...rest],
    ...(propagation === undefined ? {} : { rootfsPropagation: propagation }),
  };
}

/** A pause container's mounts. */
export function sandboxMounts(files: PodFiles): OciMount[] {
  return [...systemMounts(false), ...podMounts(files, true)];
}

/** The OCI form of CRI's id mappings. */
export function idMappings(mappings: readonly IDMapping[] | null | undefined): OciIdMapping[] {
  return (mappings ?? []).map((mapping) => ({
    containerID: mapping.container_id ?? 0,
    hostID: mapping.host_id ?? 0,
    size: mapping.length ?? 0,
  }));
}

function systemMounts(privileged: boolean): OciMount[] {
  const access = privileged ? "rw" : "ro";
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
    mount("/sys", "sysfs", "sysfs", ["nosuid", "noexec", "nodev", access]),
    mount("/sys/fs/cgroup", "cgroup", "cgroup", ["nosuid", "noexec", "nodev", "relatime", access]),
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

function criMount(asked: Mount, fact: MountFact | undefined, runtimeFacts: RuntimeFacts): OciMount {
  const destination = posix.normalize(asked.container_path ?? "");
  const what = `mount at ${destination}`;
  if (!posix.isAbsolute(destination) || destination === "/") {
    throw invalid(`${what}: container_path must be absolute and not the root itself`);
  }
  if (asked.image?.image) checkImageMount(asked, what);
  if (fact === undefined) throw invalid(`${what}: it has no source`);
  const options = ["rbind", propagationOption(asked, fact, what)];
  options.push(accessOption(asked, runtimeFacts, what));
  for (const option of asked.mount_options ?? []) {
    if (!mountOptionNames.has(option)) {
      throw invalid(
        `${what}: mount option "${option}" is not one of ${[...mountOptionNames].join(", ")}`,
      );
    }
    options.push(option);
  }
  const result = mount(stripSlash(destination), "bind", fact.source, options);
  return addMappings(result, asked, runtimeFacts, what);
}

function checkImageMount(asked: Mount, what: string): void {
  if (asked.host_path) throw invalid(`${what}: image and host_path exclude each other`);
  if (!asked.readonly) throw invalid(`${what}: an image can only be mounted read-only`);
}

function propagationOption(asked: Mount, fact: MountFact, what: string): string {
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
    default:
      throw invalid(`${what}: unknown propagation ${String(propagation)}`);
  }
}

function notPropagating(what: string, fact: MountFact, alternative: string): CriError {
  return new CriError(
    "FAILED_PRECONDITION",
    `${what}: its propagation needs ${fact.source} on a shared ${alternative}mount, and it is on a ${fact.propagation} one (try: mount --make-rshared on the mount that holds it)`,
  );
}

function accessOption(asked: Mount, runtimeFacts: RuntimeFacts, what: string): string {
  if (!asked.recursive_read_only) return asked.readonly ? "ro" : "rw";
  if (!asked.readonly) throw invalid(`${what}: recursive_read_only needs readonly`);
  if ((asked.propagation ?? 0) !== MountPropagation.PROPAGATION_PRIVATE) {
    throw invalid(`${what}: recursive_read_only needs private propagation`);
  }
  if (!runtimeFacts.recursiveReadOnlyMounts) {
    throw new CriError(
      "FAILED_PRECONDITION",
      `${what}: recursive_read_only needs Linux 5.12 and a runtime whose features list "rro"`,
    );
  }
  return "rro";
}

function addMappings(
  result: OciMount,
  asked: Mount,
  runtimeFacts: RuntimeFacts,
  what: string,
): OciMount {
  const uidMappings = idMappings(asked.uidMappings);
  const gidMappings = idMappings(asked.gidMappings);
  if (uidMappings.length === 0 && gidMappings.length === 0) return result;
  if (!runtimeFacts.idmapMounts) {
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
