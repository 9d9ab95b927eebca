// Mounts overlayfs over layers, finds the overlays that are mounted, and tests whether overlayfs works.
import * as fs from "node:fs";
import { mkdir, rmdir } from "node:fs/promises";
import { join } from "node:path";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { Descriptor } from "../sys/descriptor.ts";
import {
  mount,
  mountByOptions,
  mountIdmapped,
  MNT_DETACH,
  MS_RDONLY,
  type MountOption,
  unmount,
} from "../sys/mount.ts";
import { readMountTable } from "../sys/mount_table.ts";
import {
  pathsForTable,
  pathsOf,
  type OverlayOption,
  type Paths,
  type Stack,
} from "./overlay_paths.ts";
import { markOpaque, markRemoved } from "./whiteouts.ts";
import { removeTree } from "../sys/remove_tree.ts";

type OverlayParts = {
  /** The folder that holds the layers' trees. */
  trees: string;
  /** Names in it, lowest first; at least one. */
  names: string[];
  /** The folder of upper, work and rootfs. */
  dir: string;
  readonly: boolean;
  /** The file of a user namespace, whose id mapping the layers get. */
  userns?: string | undefined;
  label?: string | undefined;
  options?: readonly OverlayOption[] | undefined;
};

/** Limit of mount(2)'s options together, and the layers that it has room for by descriptor. */
const [pageBytes, pageLayersMax] = [4096, 127];
const fewLayers = `this kernel or libc takes at most ${pageLayersMax} (it lacks overlayfs's lowerdir+, of Linux 6.8, or fsopen(2), of glibc 2.36): build the image with fewer layers, or upgrade the node`;

/** @throws CriError INTERNAL with the kernel's reason, FAILED_PRECONDITION when ids cannot be mapped. */
export async function mountOverlay(parts: OverlayParts): Promise<void> {
  const { trees, dir, userns } = parts;
  if (userns === undefined) return stack(parts);
  // Overlayfs accepts only layers that are mounted somewhere, and keeps its own reference to them.
  const view = join(dir, idmappedName);
  await mkdir(view, { recursive: true, mode: 0o700 });
  try {
    idmap(trees, view, userns);
    stack({ ...parts, trees: view });
  } finally {
    await unmountView(dir);
  }
}

/** The temporary mount point of the layers with a user namespace's ids. */
const idmappedName = "idmapped";

function idmap(trees: string, view: string, userns: string): void {
  using namespace = Descriptor.open(userns, fs.constants.O_RDONLY);
  try {
    mountIdmapped(trees, view, namespace);
  } catch (cause) {
    const hint =
      errnoOf(cause) === "EINVAL"
        ? ": its file system may lack id-mapped mounts (tmpfs has them from Linux 6.3 on): move graph to ext4, xfs or btrfs"
        : "";
    const message = `cannot mount the layers with the ids of a user namespace: ${messageOf(cause)}${hint}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause });
  }
}

/** Unmounts the id-mapped layers, also after an interrupted mount. */
export async function unmountView(dir: string): Promise<void> {
  const view = join(dir, idmappedName);
  unmountAll(view);
  await rmdir(view).catch((error: unknown) => {
    if (errnoOf(error) !== "ENOENT") throw error;
  });
}

function stack({ trees, names, dir, readonly, label, options = [] }: OverlayParts): void {
  const rootfs = join(dir, "rootfs");
  using layers = Descriptor.openFolder(trees);
  using folder = Descriptor.openFolder(dir);
  try {
    const pathsIn = (folderOfLayers: string, own: string): Paths => ({
      below: names.map((name) => join(folderOfLayers, name)).toReversed(),
      upper: join(own, "upper"),
      work: join(own, "work"),
    });
    const named = pathsIn(trees, dir);
    const short = pathsIn(`/proc/self/fd/${layers.fd}`, `/proc/self/fd/${folder.fd}`);
    mountStack(rootfs, { named, short, readonly, label, options });
  } catch (error) {
    const message = `cannot mount ${rootfs}: ${messageOf(error)}`;
    const code = error instanceof CriError ? error.code : "INTERNAL";
    throw new CriError(code, message, { cause: error });
  }
}

/** "volatile" needs kernel 5.10, "lowerdir+" kernel 6.8, fsopen(2) glibc 2.36: the trial mount finds out. */
const mountForms = ["options", "volatile page", "page"] as const;
/** The first form that has worked. */
let formIndex = 0;
let hasWorked = false;

/** @throws CriError FAILED_PRECONDITION for more layers than this kernel mounts. */
export function assertMountable(layers: number, what: string): void {
  if (mountForms[formIndex] === "options" || layers <= pageLayersMax) return;
  throw new CriError("FAILED_PRECONDITION", `${what} has ${layers} layers: ${fewLayers}`);
}

/** Mounts by the newest form that kernel and libc support. @throws the error of the first supported form. */
function mountStack(rootfs: string, of: Stack): void {
  let failure: unknown;
  for (const [index, form] of mountForms.entries()) {
    if (index < formIndex) continue;
    try {
      mountBy(form, rootfs, of);
      formIndex = index;
      hasWorked = true;
      return;
    } catch (error) {
      if (error instanceof CriError && (failure === undefined || !hasWorked)) throw error;
      const code = errnoOf(error);
      if (failure === undefined || errnoOf(failure) === "ENOSYS") failure = error;
      if (code !== "ENOSYS" && code !== "EINVAL") break; // an older form would fail as well
    }
  }
  throw failure;
}

function mountBy(form: (typeof mountForms)[number], rootfs: string, of: Stack): void {
  const { readonly, label } = of;
  const own = [...new Map([["index", "off"], ...of.options])];
  // A container's writable layer does not survive a reboot, so it need not be synced; without "volatile"
  // each unmount would sync the whole file system.
  if (form === "options") {
    const { below, upper, work } = pathsForTable(of, rootfs);
    const options: MountOption[] = [
      ...below.map((path) => ["lowerdir+", path] as const),
      ["upperdir", upper],
      ["workdir", work],
      ...own,
      ["volatile"],
      ...(label === undefined ? [] : [["context", label] as const]),
    ];
    mountByOptions("overlay", rootfs, { options, readonly });
    return;
  }
  const context = label === undefined ? "" : `context="${label}",`; // an SELinux level contains commas
  const set = own.map((pair) => pair.join("=")).join(",");
  const more = `${form === "page" ? "" : "volatile,"}${context}${set}`;
  const pageOf = ({ below, upper, work }: Paths) =>
    `${more},lowerdir=${below.join(":")},upperdir=${upper},workdir=${work}`;
  const named = pageOf(of.named);
  const isPlain = pathsOf(of.named).every((path) => !/[,:\\]/.test(path));
  const options = isPlain && Buffer.byteLength(named) < pageBytes ? named : pageOf(of.short);
  if (Buffer.byteLength(options) >= pageBytes) {
    throw new CriError(
      "FAILED_PRECONDITION",
      `it has ${of.named.below.length} layers: ${fewLayers}`,
    );
  }
  try {
    mount("overlay", rootfs, "overlay", readonly ? MS_RDONLY : 0, options);
  } catch (error) {
    // mount(2) tells no more than EINVAL, whatever is wrong.
    if (error instanceof Error) error.message += ` (options ${more}; the kernel's log says why)`;
    throw error;
  }
}

/** Finds the overlays mounted below a folder: container folder → names of its layers, topmost first. */
export function mountedOverlays(graph: string): Map<string, string[]> {
  const found = new Map<string, string[]>();
  for (const { type, point, options } of readMountTable()) {
    if (type !== "overlay") continue;
    if (!point.startsWith(`${graph}/`) || !point.endsWith("/rootfs")) continue;
    const lower = options.matchAll(/(?:^|,)lowerdir\+?=([^,]*)/g);
    const trees = [...lower].flatMap(([, paths]) => paths!.split(":"));
    const names = trees.map((tree) => tree.slice(tree.lastIndexOf("/") + 1));
    found.set(point.slice(0, -"/rootfs".length), names);
  }
  return found;
}

/** Reason why overlayfs does not work; isKnown: false when a full disk may be the cause. */
type OverlayProblem = { problem: string; isKnown: boolean };

/** Tests overlayfs in a folder by mounting two layers; undefined: it works. */
export async function overlayProblem(
  folder: string,
  options: readonly OverlayOption[],
): Promise<OverlayProblem | undefined> {
  const dir = join(folder, "trial");
  const rootfs = join(dir, "rootfs");
  unmountAll(rootfs); // left by an interrupted trial
  await removeTree(dir);
  try {
    const problem = await tryOverlay(dir, options);
    return problem === undefined ? undefined : { problem, isKnown: hasSpaceForTrial(folder) };
  } catch (error) {
    const isKnown = !isDiskFull(error) && hasSpaceForTrial(folder);
    return { problem: messageOf(error), isKnown };
  } finally {
    unmountAll(rootfs);
    await removeTree(dir);
  }
}

/** Tests what images need: whiteouts and opaque folders in layers, removal and rename above. */
async function tryOverlay(
  dir: string,
  options: readonly OverlayOption[],
): Promise<string | undefined> {
  const rootfs = join(dir, "rootfs");
  for (const name of ["lower/opaque", "over/opaque", "upper", "work", "rootfs"]) {
    await mkdir(join(dir, name), { recursive: true });
  }
  for (const name of ["kept", "removed", "opaque/hidden"])
    fs.writeFileSync(join(dir, "lower", name), "");
  markRemoved(join(dir, "over/removed"));
  markOpaque(join(dir, "over/opaque"));
  stack({ trees: dir, names: ["lower", "over"], dir, readonly: false, options });
  const names = fs.readdirSync(rootfs).toSorted().join(" ");
  const within = fs.readdirSync(join(rootfs, "opaque")).join(" ");
  if (names !== "kept opaque" || within !== "") return "files that a layer removes stay visible";
  fs.rmSync(join(rootfs, "kept"));
  fs.writeFileSync(join(rootfs, "new"), "");
  fs.renameSync(join(rootfs, "new"), join(rootfs, "kept"));
  fs.rmSync(join(rootfs, "kept"));
  if (fs.readdirSync(rootfs).join(" ") !== "opaque")
    return "files that a container removes stay visible";
  return undefined;
}

/** EROFS: overlayfs mounts itself read-only when it cannot create its work folder. */
function isDiskFull(error: unknown): boolean {
  if (["ENOSPC", "EDQUOT", "EROFS"].includes(errnoOf(error) ?? "")) return true;
  return error instanceof CriError && error.cause !== undefined && isDiskFull(error.cause);
}

/** Checks for more space than the trial needs, since the kernel does not always report a full disk. */
function hasSpaceForTrial(folder: string): boolean {
  const { blocks, bavail, bsize, files, ffree } = fs.statfsSync(folder);
  const [bytesMin, filesMin] = [1 << 20, 64];
  return (blocks === 0 || bavail * bsize > bytesMin) && (files === 0 || ffree > filesMin); // 0: not reported
}

/** Bounds the loop; more mounts than are ever stacked on one path. */
const unmountsMax = 16;

/** Unmounts everything at a path; a path without mounts, or no such path, is no error. */
export function unmountAll(path: string): void {
  if (!fs.existsSync(path)) return;
  for (let left = unmountsMax; left > 0 && tryUnmount(path); left--);
}

function tryUnmount(path: string): boolean {
  try {
    unmount(path);
  } catch (error) {
    const code = errnoOf(error);
    if (code === "EINVAL" || code === "ENOENT") return false;
    if (code !== "EBUSY") throw error;
    unmount(path, MNT_DETACH);
  }
  return true;
}
