// Gives a container what systemd needs as its first process: folders in memory, and a writable cgroup of its own
// (systemd's CONTAINER_INTERFACE.md). Loaded only where systemd-containers is set.
// Decision: the container gets its own cgroup and nothing above it, always in a cgroup namespace of its own.
// Under v1 only the hierarchy name=systemd, which has no limits, is writable. Under v2 the container's limits are
// files in the same folder. A user namespace keeps the container from writing them, since they belong to the node's
// root; without a user namespace the mount option nsdelegate does, as long as the container cannot make another cgroup
// namespace.
import { posix } from "node:path";
import type { ContainerConfig, PodSandboxConfig } from "../proto/types.ts";
import type { OciHook, OciMount, OciSpec } from "./oci_types.ts";
import { containerPidMode } from "./namespace_options.ts";
import { processArgs } from "./process.ts";
import { invalid, unsupported } from "./refusals.ts";
import type { HostInfo, ImageProcess } from "./spec_inputs.ts";

/** Annotation of a container, or of a pod for all its containers; on a pod, with ".NAME" appended, for one of them. */
const annotation = "io.isulad.systemd";

/** What systemd takes as a request to halt. */
export const systemdStopSignal = "SIGRTMIN+3";

/** hasSharedPid: the pod has one pid namespace for its containers. */
type Subject = {
  config: ContainerConfig;
  pod: PodSandboxConfig;
  hasSharedPid: boolean;
  image: ImageProcess;
};

/**
 * Tests whether a container is to run systemd: by its annotation, else by its command as podman decides it
 * (`--systemd=true`), or by the variables of a PouchContainer whose mode is systemd or sbin-init.
 * @throws CriError INVALID_ARGUMENT for an annotation that is neither true nor false.
 */
export function runsSystemd({ config, pod, hasSharedPid, image }: Subject): boolean {
  // Under v1 a container that sees other processes could move them to its cgroup.
  const isAlone =
    containerPidMode(config, { config: pod, hasShared: hasSharedPid }) === "container";
  if (!isAlone) return false;
  const requested =
    config.annotations?.[annotation] ??
    pod.annotations?.[`${annotation}.${config.metadata?.name ?? ""}`] ??
    pod.annotations?.[annotation];
  if (requested === "true" || requested === "false") return requested === "true";
  if (requested !== undefined) {
    throw invalid(`annotation ${annotation} must be "true" or "false", not "${requested}"`);
  }
  return isInit(processArgs(config, image)) || isRich(config);
}

const inits = new Set(["/sbin/init", "/usr/sbin/init", "/usr/local/sbin/init"]);

function isInit(args: string[]): boolean {
  // An image's Cmd as text becomes an argument of a shell.
  const isInShell = args.length > 2 && args[0] === "/bin/sh" && args[1] === "-c";
  const program = args[isInShell ? 2 : 0]!;
  return inits.has(program) || posix.basename(program) === "systemd";
}

function isRich({ envs }: ContainerConfig): boolean {
  const text = new TextDecoder();
  const variables = new Map((envs ?? []).map(({ key, value }) => [key, text.decode(value)]));
  const mode = variables.get("rich_mode_launch_manner") ?? "";
  return variables.get("rich_mode") === "true" && ["systemd", "sbin-init"].includes(mode);
}

/** cgroup: the container's folders by hierarchy (node/cgroup.ts). */
type Parts = { host: HostInfo; cgroup: Record<string, string>; privileged: boolean };

/** Returns the spec changed for systemd. @throws CriError FAILED_PRECONDITION for an unsafe cgroup mount. */
export function withSystemd(spec: OciSpec, parts: Parts): OciSpec {
  const { process } = spec;
  const taken = new Set(spec.mounts.map(({ destination }) => destination));
  const folders = memoryFolders.filter(({ destination }) => !taken.has(destination));
  const hasContainer = process.env.some((entry) => entry.startsWith("container="));
  const env = hasContainer ? process.env : [...process.env, "container=oci"];
  // First, because other mounts may lie inside these folders; no mount that has to come earlier contains one of them.
  const changed = { ...spec, process: { ...process, env }, mounts: [...folders, ...spec.mounts] };
  const cgroupMount = spec.mounts.find(isCgroupMount);
  if (cgroupMount === undefined) return changed; // the pod has a mount of its own there
  const own = withOwnNamespace(changed);
  return parts.host.cgroupVersion === 2 ? withUnified(own, parts) : withNamed(own, parts);
}

const memoryFolders = [
  memoryFolder("/run", ["mode=755"]),
  memoryFolder("/run/lock", ["mode=1777", "noexec"]),
  memoryFolder("/tmp", ["mode=1777"]),
  memoryFolder("/var/log/journal", ["mode=755", "noexec"]),
];

/** tmpcopyup: runc and crun copy what the image has there. */
function memoryFolder(destination: string, more: string[]): OciMount {
  const options = ["nosuid", "nodev", "tmpcopyup", ...more];
  return { destination, type: "tmpfs", source: "tmpfs", options };
}

function isCgroupMount({ destination, type }: OciMount): boolean {
  return destination === "/sys/fs/cgroup" && type === "cgroup";
}

function withOwnNamespace(spec: OciSpec): OciSpec {
  const others = spec.linux.namespaces.filter(({ type }) => type !== "cgroup");
  const namespaces: typeof others = [...others, { type: "cgroup" }];
  return { ...spec, linux: { ...spec.linux, namespaces } };
}

const cgroupOptions = ["nosuid", "noexec", "nodev", "relatime", "rw"];
/** Enough for a thousand of systemd's units, but bounded: each cgroup takes memory of the kernel. */
const descendantsMax = "1000";

function withUnified(spec: OciSpec, { host, cgroup, privileged }: Parts): OciSpec {
  const isMapped = ownerOf(spec) !== undefined;
  if (!isMapped && !privileged && !host.cgroupOptions.includes("nsdelegate")) {
    throw unsupported(
      "systemd in a container needs nsdelegate, without which the container could raise its own limits: mount -o remount,nsdelegate /sys/fs/cgroup, and restart isulad-ts",
    );
  }
  const mounts = spec.mounts.map((mount) =>
    isCgroupMount(mount) ? { ...mount, options: cgroupOptions } : mount,
  );
  const { resources } = spec.linux;
  const unified = { "cgroup.max.descendants": descendantsMax, ...resources.unified };
  const bounded = {
    ...spec,
    mounts,
    linux: { ...spec.linux, resources: { ...resources, unified } },
  };
  const files = ["cgroup.procs", "cgroup.threads", "cgroup.subtree_control"];
  return delegated(bounded, cgroup["unified"]!, files);
}

function withNamed(spec: OciSpec, { cgroup }: Parts): OciSpec {
  const folder = cgroup["name=systemd"];
  if (folder === undefined) return spec;
  const destination = "/sys/fs/cgroup/systemd";
  const mount = {
    destination,
    type: "bind",
    source: folder,
    options: ["bind", "rprivate", ...cgroupOptions],
  };
  const at = spec.mounts.findIndex(isCgroupMount) + 1;
  const mounts = spec.mounts.toSpliced(at, 0, mount);
  return delegated({ ...spec, mounts }, folder, ["cgroup.procs", "tasks"]);
}

/** Returns the node's user who is root in the container's user namespace. */
function ownerOf({ linux }: OciSpec): { uid: number; gid: number } | undefined {
  const rootOf = (mappings: typeof linux.uidMappings) =>
    mappings?.find(({ containerID }) => containerID === 0)?.hostID;
  const [uid, gid] = [rootOf(linux.uidMappings), rootOf(linux.gidMappings)];
  return uid === undefined || gid === undefined ? undefined : { uid, gid };
}

/**
 * In a user namespace, gives the namespace's root those files of the cgroup that the kernel lets be delegated
 * (/sys/kernel/cgroup/delegate); the limits still belong to the node's root. A hook does it, because the cgroup exists
 * only once the runtime has made it.
 */
function delegated(spec: OciSpec, folder: string, files: string[]): OciSpec {
  const owner = ownerOf(spec);
  if (owner === undefined) return spec;
  const paths = [folder, ...files.map((name) => posix.join(folder, name))];
  const args = ["chown", `${owner.uid}:${owner.gid}`, ...paths];
  const hook: OciHook = { path: "/bin/chown", args };
  const { createRuntime = [], ...others } = spec.hooks ?? {};
  return { ...spec, hooks: { ...others, createRuntime: [hook, ...createRuntime] } };
}
