// Gathers what the pure functions of spec/ need to know of this host and of an image's files.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { lstat, readlink } from "node:fs/promises";
import { arch } from "node:os";
import { join, posix } from "node:path";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { readBounded, readTextBounded } from "../sys/file.ts";
import { kernelIsAtLeast } from "../sys/kernel_version.ts";
import { mountOf, readMountTable, type MountEntry } from "../sys/mount_table.ts";
import type { ContainerConfig, Mount } from "../proto/types.ts";
import { capabilityNames } from "../spec/capabilities.ts";
import type { ResolvedInputs, HostInfo, MountSource } from "../spec/spec_inputs.ts";
import { namesApparmorProfile, seccompProfileFile } from "../spec/security.ts";
import { loadedProfiles } from "./apparmor.ts";
import type { CgroupMounts } from "./cgroup.ts";
import { hostDevices, lookupDevice } from "./devices.ts";
import { mountSource } from "./mount_source.ts";

const accountFileBytesMax = 4 << 20;
const seccompBytesMax = 4 << 20;
const linksMax = 40;

/** What of the host stays the same while the daemon runs. */
export function readHostInfo(
  cgroups: CgroupMounts,
  { apparmor, selinux }: Pick<HostInfo, "apparmor" | "selinux">,
): HostInfo {
  const status = readFileSync("/proc/self/status", "utf8");
  const bounding = BigInt(`0x${/^CapBnd:\s*([0-9a-f]+)$/m.exec(status)?.[1] ?? "0"}`);
  return {
    cgroupVersion: cgroups.version,
    cgroupOptions: readCgroupOptions(cgroups),
    hugepageSizes: readHugepageSizes(cgroups),
    swapLimit: hasSwapLimit(cgroups),
    capabilities: capabilityNames.filter((_name, bit) => (bounding >> BigInt(bit)) & 1n),
    oomScoreAdj: Number(readFileSync("/proc/self/oom_score_adj", "utf8")),
    ...(apparmor === undefined ? {} : { apparmor }),
    idmappedLayers: kernelIsAtLeast(5, 19),
    ...(selinux === undefined ? {} : { selinux }),
    arch: arch(),
  };
}

export type LookupOptions = {
  rootfsPath: string;
  /** Where mounts with an image are mounted, by index in config.mounts. */
  imageMounts?: ReadonlyMap<number, string>;
  /** Refuse mount sources that are missing, instead of making them. */
  rejectMissing?: boolean;
  /** For what a disk may not answer. */
  signal: AbortSignal;
};

/**
 * Everything that one container's spec depends on. Missing mount sources become folders, as every
 * other CRI runtime does it and pods with untyped hostPath volumes rely on.
 * @throws CriError naming the mount, device or profile that cannot be had.
 */
export async function lookupContainer(
  config: ContainerConfig,
  options: LookupOptions,
): Promise<ResolvedInputs> {
  const security = config.linux?.security_context;
  const profile = seccompProfileFile(security);
  return {
    mounts: await lookupMounts(config.mounts ?? [], options),
    devices: await Promise.all((config.devices ?? []).map(lookupDevice)),
    hostDevices: security?.privileged ? await hostDevices() : [],
    passwd: await readInRoot(options.rootfsPath, "/etc/passwd", accountFileBytesMax),
    group: await readInRoot(options.rootfsPath, "/etc/group", accountFileBytesMax),
    ...(profile === undefined ? {} : { seccompProfile: readProfile(profile) }),
    ...(namesApparmorProfile(security) ? { apparmorProfiles: loadedProfiles() ?? [] } : {}),
  };
}

/**
 * The text of a file of an image; links are followed inside root only. "" where it is missing or no
 * plain file. @throws CriError FAILED_PRECONDITION when it is larger than maxBytes.
 */
async function readInRoot(root: string, path: string, maxBytes: number): Promise<string> {
  const real = await resolveInRoot(root, path);
  if (real === undefined || !(await lstat(real)).isFile()) return "";
  const bytes = readBounded(real, maxBytes + 1);
  if (bytes.length > maxBytes) {
    throw new CriError("FAILED_PRECONDITION", `${path} of the image is over ${maxBytes} bytes`);
  }
  return new TextDecoder().decode(bytes);
}

/** The host's path of a file in root, or undefined. The tree must not change meanwhile. */
export async function resolveInRoot(root: string, path: string): Promise<string | undefined> {
  let todo = path.split("/");
  let at = "/";
  for (let links = 0; todo.length > 0;) {
    const name = todo.shift()!;
    const next = posix.join(at, name); // ".." stops at "/"
    try {
      if ((await lstat(join(root, next))).isSymbolicLink()) {
        if (++links > linksMax) return undefined;
        const target = await readlink(join(root, next));
        if (target.startsWith("/")) at = "/";
        todo = [...target.split("/"), ...todo];
      } else {
        at = next;
      }
    } catch (error) {
      if (["ENOENT", "ENOTDIR"].includes(errnoOf(error) ?? "")) return undefined;
      throw error;
    }
  }
  return join(root, at);
}

/**
 * A folder in the root file system of an image that is mounted; links are followed inside it only.
 * @throws CriError NOT_FOUND, or FAILED_PRECONDITION for what is no folder.
 */
export async function folderInRoot(root: string, path: string): Promise<string> {
  const real = await resolveInRoot(root, path);
  if (real === undefined) throw new CriError("NOT_FOUND", `the image has no ${path}`);
  if ((await lstat(real)).isDirectory()) return real;
  throw new CriError("FAILED_PRECONDITION", `${path} of the image is not a folder`);
}

async function lookupMounts(
  mounts: readonly Mount[],
  { imageMounts, rejectMissing = false, signal }: LookupOptions,
): Promise<MountSource[]> {
  if (mounts.length === 0) return [];
  const table = readMountTable();
  const sources: MountSource[] = [];
  for (const [index, mount] of mounts.entries()) {
    const given = imageMounts?.get(index);
    const source = given ?? (await mountSource(mount, { table, rejectMissing, signal }));
    sources.push({ source, propagation: "private" });
  }
  if (!mounts.some((mount) => mount.propagation)) return sources;
  const now = readMountTable(); // to look may have mounted something (autofs)
  return sources.map(({ source }) => ({ source, propagation: propagationOf(source, now) }));
}

/** Of the mount that a path lies on. */
function propagationOf(path: string, table: MountEntry[]): MountSource["propagation"] {
  const tags = mountOf(path, table)?.tags ?? [];
  const shared = tags.some((tag) => tag.startsWith("shared:"));
  const slave = tags.some((tag) => tag.startsWith("master:"));
  if (shared) return slave ? "slave+shared" : "shared";
  if (slave) return "slave";
  return tags.includes("unbindable") ? "unbindable" : "private";
}

function readProfile(path: string): string {
  try {
    return readTextBounded(path, seccompBytesMax);
  } catch (cause) {
    throw new CriError("INVALID_ARGUMENT", `seccomp profile ${path}: ${messageOf(cause)}`, {
      cause,
    });
  }
}

function readHugepageSizes({ version, roots }: CgroupMounts): string[] {
  const limited =
    version === 1
      ? roots["hugetlb"] !== undefined
      : readFileSync(join(roots["unified"]!, "cgroup.controllers"), "utf8").includes("hugetlb");
  if (!limited || !existsSync("/sys/kernel/mm/hugepages")) return [];
  return readdirSync("/sys/kernel/mm/hugepages").map((name) => {
    const kib = Number(/(\d+)kB/.exec(name)?.[1]);
    if (kib >= 1 << 20) return `${kib / (1 << 20)}GB`;
    return kib >= 1 << 10 ? `${kib / (1 << 10)}MB` : `${kib}KB`;
  });
}

function readCgroupOptions({ version, roots }: CgroupMounts): string[] {
  if (version === 1) return [];
  const mounted = readMountTable().find(
    ({ type, point }) => type === "cgroup2" && point === roots["unified"],
  );
  const options = mounted?.options.split(",") ?? [];
  return options.filter((option) => ["nsdelegate", "memory_recursiveprot"].includes(option));
}

/** v2 has memory.swap.max wherever the kernel can swap at all; v1 needs swap accounting. */
function hasSwapLimit({ version, roots }: CgroupMounts): boolean {
  if (version === 2) return existsSync("/proc/swaps");
  return existsSync(join(roots["memory"] ?? "", "memory.memsw.limit_in_bytes"));
}
