// Gathers what the pure functions of spec/ need to know of this host and of an image's files.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { lstat, mkdir, readdir, readlink, realpath, stat } from "node:fs/promises";
import { arch, release } from "node:os";
import { join, posix } from "node:path";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { readBounded } from "../sys/file.ts";
import type { ContainerConfig, Device, Mount } from "../proto/types.ts";
import { capabilityNames } from "../spec/capabilities.ts";
import type { ContainerFacts, HostFacts, MountFact } from "../spec/facts.ts";
import { mountName } from "../spec/mounts.ts";
import type { OciDevice } from "../spec/oci_types.ts";
import { seccompProfileFile } from "../spec/security.ts";
import type { CgroupMounts } from "./cgroup.ts";

const accountFileBytesMax = 4 << 20;
const seccompBytesMax = 4 << 20;
const linksMax = 40;
const devicesMax = 10_000;

/** What of the host stays the same while the daemon runs. */
export function readHostFacts(cgroups: CgroupMounts, options: { selinux: boolean }): HostFacts {
  const status = readFileSync("/proc/self/status", "utf8");
  const bounding = BigInt(`0x${/^CapBnd:\s*([0-9a-f]+)$/m.exec(status)?.[1] ?? "0"}`);
  const apparmor = readApparmor();
  return {
    cgroupVersion: cgroups.version,
    hugepageSizes: readHugepageSizes(cgroups),
    swapLimit: hasSwapLimit(cgroups),
    capabilities: capabilityNames.filter((_name, bit) => (bounding >> BigInt(bit)) & 1n),
    oomScoreAdj: Number(readFileSync("/proc/self/oom_score_adj", "utf8")),
    ...(apparmor === undefined ? {} : { apparmor }),
    idmappedLayers: kernelIsAtLeast(5, 19),
    selinux: options.selinux && existsSync("/sys/fs/selinux/enforce"),
    arch: arch(),
  };
}

export type LookupOptions = {
  rootfsPath: string;
  /** Where mounts with an image are mounted, by index in config.mounts. */
  imageMounts?: ReadonlyMap<number, string>;
  /** Refuse mount sources that are missing, instead of making them. */
  rejectMissing?: boolean;
};

/**
 * Everything that one container's spec depends on. Missing mount sources become folders, as every
 * other CRI runtime does it and pods with untyped hostPath volumes rely on.
 * @throws CriError naming the mount, device or profile that cannot be had.
 */
export async function lookupContainer(
  config: ContainerConfig,
  options: LookupOptions,
): Promise<ContainerFacts> {
  const security = config.linux?.security_context;
  const profile = seccompProfileFile(security);
  return {
    mounts: await lookupMounts(config.mounts ?? [], options),
    devices: await Promise.all((config.devices ?? []).map(lookupDevice)),
    hostDevices: security?.privileged ? await hostDevices() : [],
    passwd: await readInRoot(options.rootfsPath, "/etc/passwd", accountFileBytesMax),
    group: await readInRoot(options.rootfsPath, "/etc/group", accountFileBytesMax),
    ...(profile === undefined ? {} : { seccompProfile: readProfile(profile) }),
  };
}

/**
 * The text of a file of an image; links are followed inside root only. "" where it is missing or no
 * plain file. @throws CriError FAILED_PRECONDITION when it is larger than maxBytes.
 */
export async function readInRoot(root: string, path: string, maxBytes: number): Promise<string> {
  const real = await resolveInRoot(root, path);
  if (real === undefined || !(await lstat(real)).isFile()) return "";
  const bytes = readBounded(real, maxBytes + 1);
  if (bytes.length > maxBytes) {
    throw new CriError("FAILED_PRECONDITION", `${path} of the image is over ${maxBytes} bytes`);
  }
  return new TextDecoder().decode(bytes);
}

/** The host's path of a file in root, or undefined. The tree must not change meanwhile. */
async function resolveInRoot(root: string, path: string): Promise<string | undefined> {
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
  { imageMounts, rejectMissing = false }: LookupOptions,
): Promise<MountFact[]> {
  const facts: MountFact[] = [];
  for (const [index, mount] of mounts.entries()) {
    const source = imageMounts?.get(index) ?? (await mountSource(mount, rejectMissing));
    facts.push({ source, propagation: "private" });
  }
  // Only propagation needs the table, which is long on a node with many pods.
  if (!mounts.some((mount) => mount.propagation)) return facts;
  const table = parseMountTable(readFileSync("/proc/self/mountinfo", "utf8"));
  return facts.map(({ source }) => ({ source, propagation: propagationOf(source, table) }));
}

async function mountSource(mount: Mount, rejectMissing: boolean): Promise<string> {
  const hostPath = mount.host_path ?? "";
  try {
    if (!rejectMissing) {
      await mkdir(hostPath, { recursive: true, mode: 0o755 }).catch((error: unknown) => {
        if (errnoOf(error) !== "EEXIST") throw error;
      });
    }
    return await realpath(hostPath);
  } catch (cause) {
    const hint =
      rejectMissing && errnoOf(cause) === "ENOENT" ? " (reject-missing-mount-sources is set)" : "";
    const message = `${mountName(mount)}: host_path: ${messageOf(cause)}${hint}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause });
  }
}

type MountPoint = { folder: string; propagation: MountFact["propagation"] };

/** Mount points with their propagation (proc(5), mountinfo: the optional fields). */
export function parseMountTable(mountinfo: string): MountPoint[] {
  const result: MountPoint[] = [];
  for (const line of mountinfo.split("\n")) {
    const fields = (line.split(" - ", 1)[0] ?? "").split(" ");
    if (fields.length < 6) continue;
    const tags = fields.slice(6);
    const shared = tags.some((tag) => tag.startsWith("shared:"));
    const slave = tags.some((tag) => tag.startsWith("master:"));
    let propagation: MountFact["propagation"] = "private";
    if (shared) propagation = slave ? "slave+shared" : "shared";
    else if (slave) propagation = "slave";
    else if (tags.includes("unbindable")) propagation = "unbindable";
    const folder = fields[4]!.replace(/\\([0-7]{3})/g, (_all, octal: string) =>
      String.fromCharCode(Number.parseInt(octal, 8)),
    );
    result.push({ folder, propagation });
  }
  return result;
}

/** Of the mount that path lies on: the longest mount point, of equal ones the last. */
export function propagationOf(path: string, table: MountPoint[]): MountFact["propagation"] {
  let best: MountPoint | undefined;
  for (const point of table) {
    const holds =
      point.folder === "/" || path === point.folder || path.startsWith(`${point.folder}/`);
    if (holds && point.folder.length >= (best?.folder.length ?? 0)) best = point;
  }
  return best?.propagation ?? "private";
}

async function lookupDevice(device: Device): Promise<OciDevice[]> {
  const hostPath = device.host_path ?? "";
  const containerPath = device.container_path || hostPath;
  if (!containerPath.startsWith("/")) {
    throw new CriError("INVALID_ARGUMENT", `device "${containerPath}" is not an absolute path`);
  }
  let found: OciDevice[];
  try {
    const real = await realpath(hostPath);
    found = (await stat(real)).isDirectory()
      ? await walkDevices(real, containerPath, new Set())
      : [await deviceNode(real, containerPath)].filter((node) => node !== undefined);
  } catch (cause) {
    throw new CriError("INVALID_ARGUMENT", `device ${hostPath}: ${messageOf(cause)}`, { cause });
  }
  if (found.length === 0) {
    throw new CriError(
      "INVALID_ARGUMENT",
      `device ${hostPath}: it is not a device, nor a folder of some`,
    );
  }
  return found;
}

/** What a privileged container sees; pseudo-terminals and shared memory are its own. */
function hostDevices(): Promise<OciDevice[]> {
  return walkDevices(
    "/dev",
    "/dev",
    new Set(["/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/fd", "/dev/console"]),
  );
}

async function walkDevices(
  folder: string,
  containerFolder: string,
  skip: ReadonlySet<string>,
): Promise<OciDevice[]> {
  const result: OciDevice[] = [];
  for (const entry of (await readdir(folder, { withFileTypes: true })).sort(byName)) {
    const path = join(folder, entry.name);
    const target = join(containerFolder, entry.name);
    if (skip.has(path)) continue;
    if (entry.isDirectory()) {
      result.push(...(await walkDevices(path, target, skip)));
    } else if (entry.isCharacterDevice() || entry.isBlockDevice()) {
      const node = await deviceNode(path, target).catch(ignoreMissing);
      if (node !== undefined) result.push(node);
    }
    if (result.length > devicesMax) {
      throw new CriError("RESOURCE_EXHAUSTED", `more than ${devicesMax} devices in ${folder}`);
    }
  }
  return result;
}

async function deviceNode(path: string, containerPath: string): Promise<OciDevice | undefined> {
  const info = await stat(path, { bigint: true });
  if (!info.isCharacterDevice() && !info.isBlockDevice()) return undefined;
  return {
    path: containerPath,
    type: info.isBlockDevice() ? "b" : "c",
    major: Number(((info.rdev >> 8n) & 0xfffn) | ((info.rdev >> 32n) & ~0xfffn)),
    minor: Number((info.rdev & 0xffn) | ((info.rdev >> 12n) & 0xfff00n)),
    fileMode: Number(info.mode & 0o7777n),
    uid: Number(info.uid),
    gid: Number(info.gid),
  };
}

function readProfile(path: string): string {
  try {
    return new TextDecoder().decode(readBounded(path, seccompBytesMax));
  } catch (cause) {
    throw new CriError("INVALID_ARGUMENT", `seccomp profile ${path}: ${messageOf(cause)}`, {
      cause,
    });
  }
}

function readApparmor(): HostFacts["apparmor"] {
  try {
    if (readFileSync("/sys/module/apparmor/parameters/enabled", "utf8")[0] !== "Y")
      return undefined;
    const profiles = readFileSync("/sys/kernel/security/apparmor/profiles", "utf8");
    return { profiles: profiles.split("\n").map((line) => line.replace(/ \([a-z]+\)$/, "")) };
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return undefined;
    throw error;
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

function kernelIsAtLeast(major: number, minor: number): boolean {
  const [own = 0, ownMinor = 0] = release().split(/[.-]/).map(Number);
  return own > major || (own === major && ownMinor >= minor);
}

/** v2 has memory.swap.max wherever the kernel can swap at all; v1 needs swap accounting. */
function hasSwapLimit({ version, roots }: CgroupMounts): boolean {
  if (version === 2) return existsSync("/proc/swaps");
  return existsSync(join(roots["memory"] ?? "", "memory.memsw.limit_in_bytes"));
}

function byName(a: { name: string }, b: { name: string }): number {
  return a.name < b.name ? -1 : 1;
}

function ignoreMissing(error: unknown): undefined {
  if (errnoOf(error) !== "ENOENT") throw error;
}
