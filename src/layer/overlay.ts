// Stacks layers by overlayfs, and tells which roots are stacked now.
import * as fs from "node:fs";
import { mkdir, rm, rmdir } from "node:fs/promises";
import { join } from "node:path";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { mount, mountByOptions, mountIdmapped, MS_RDONLY, type MountOption } from "../sys/mount.ts";
import { readMountTable } from "../sys/mount_table.ts";
import { unmountAll } from "./unmount.ts";
import { markOpaque, markRemoved } from "./whiteouts.ts";

export type OverlayParts = {
  /** The folder that holds the layers' trees. */
  trees: string;
  /** Names in it, lowest first; at least one. */
  names: string[];
  /** Holds upper, work and rootfs. */
  dir: string;
  readonly: boolean;
  /** A user namespace's file: the layers are seen with its ids. */
  userns?: string | undefined;
  /** SELinux's of all files in it. */
  label?: string | undefined;
};

/** @throws CriError INTERNAL with the kernel's reason, FAILED_PRECONDITION where ids cannot be mapped. */
export async function mountOverlay(parts: OverlayParts): Promise<void> {
  const { trees, dir, userns } = parts;
  if (userns === undefined) {
    stack(parts);
    return;
  }
  // Overlayfs takes only layers that are mounted somewhere, and keeps its own hold on them.
  const view = join(dir, idmappedName);
  await mkdir(view, { recursive: true, mode: 0o700 });
  try {
    idmap(trees, view, userns);
    stack({ ...parts, trees: view });
  } finally {
    await unmountView(dir);
  }
}

/** Where the layers are for a moment with a user namespace's ids. */
const idmappedName = "idmapped";

function idmap(trees: string, view: string, userns: string): void {
  using namespace = Descriptor.open(userns, fs.constants.O_RDONLY);
  try {
    mountIdmapped(trees, view, namespace);
  } catch (cause) {
    const message = `cannot mount the layers with a user namespace's ids: ${messageOf(cause)}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause });
  }
}

/** Of a mounting that was cut off, too. */
export async function unmountView(dir: string): Promise<void> {
  const view = join(dir, idmappedName);
  unmountAll(view);
  await rmdir(view).catch((error: unknown) => {
    if (errnoOf(error) !== "ENOENT") throw error;
  });
}

function stack({ trees, names, dir, readonly, label }: OverlayParts): void {
  const rootfs = join(dir, "rootfs");
  using layers = Descriptor.open(trees, fs.constants.O_RDONLY | fs.constants.O_DIRECTORY);
  using folder = Descriptor.open(dir, fs.constants.O_RDONLY | fs.constants.O_DIRECTORY);
  try {
    // By descriptor: 127 layers fit into a page of options however long the graph folder's path is, no
    // comma or colon in it matters, and the line in mountinfo, which runc reads, stays short.
    const below = names.map((name) => `/proc/self/fd/${layers.fd}/${name}`).toReversed();
    mountStack(rootfs, { below, own: `/proc/self/fd/${folder.fd}`, readonly, label });
  } catch (error) {
    const message = `cannot mount ${rootfs}: ${messageOf(error)}`;
    throw new CriError("INTERNAL", message, { cause: error });
  }
}

type Stack = {
  /** Paths, topmost first. */
  below: string[];
  /** Holds upper and work. */
  own: string;
  readonly: boolean;
  label: string | undefined;
};

/** "volatile" came with kernel 5.10, "lowerdir+" with 6.5, fsopen(2) with glibc 2.36. */
const ways = ["options", "volatile page", "page"] as const;
let wayAt = 0;

/** By the newest way that kernel and libc have. @throws what the first of them said that is there. */
function mountStack(rootfs: string, of: Stack): void {
  let failure: unknown;
  for (const [at, way] of ways.entries()) {
    if (at < wayAt) continue;
    try {
      mountBy(way, rootfs, of);
      wayAt = at;
      return;
    } catch (error) {
      const code = errnoOf(error);
      if (failure === undefined || errnoOf(failure) === "ENOSYS") failure = error;
      if (code !== "ENOSYS" && code !== "EINVAL") break; // no newer or older kernel would take it
    }
  }
  throw failure;
}

function mountBy(way: (typeof ways)[number], rootfs: string, of: Stack): void {
  const { below, own, readonly, label } = of;
  // A container's own files do not outlive the boot, so nothing of them must reach the disk in time;
  // without "volatile" each removal would sync the whole file system.
  if (way === "options") {
    const options: MountOption[] = [
      ...below.map((path) => ["lowerdir+", path] as const),
      ["upperdir", `${own}/upper`],
      ["workdir", `${own}/work`],
      ["index", "off"],
      ["volatile"],
      ...(label === undefined ? [] : [["context", label] as const]),
    ];
    mountByOptions("overlay", rootfs, { options, readonly });
    return;
  }
  const context = label === undefined ? "" : `context="${label}",`; // a level has commas
  const more = `${way === "page" ? "" : "volatile,"}${context}index=off`;
  const options = `${more},lowerdir=${below.join(":")},upperdir=${own}/upper,workdir=${own}/work`;
  mount("overlay", rootfs, "overlay", readonly ? MS_RDONLY : 0, options);
}

/** Overlays under a folder that this node has mounted now: container folder → lower names. */
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

/** Why layers cannot be stacked. isKnown: not so where it may be that there is no room to try. */
export type OverlayProblem = { problem: string; isKnown: boolean };

/** In a folder, found out by stacking two; undefined where they can. */
export async function overlayProblem(folder: string): Promise<OverlayProblem | undefined> {
  const dir = join(folder, "trial");
  const rootfs = join(dir, "rootfs");
  unmountAll(rootfs); // of a trial that was cut off
  await rm(dir, { recursive: true, force: true });
  try {
    const problem = await tryToStack(dir);
    return problem === undefined ? undefined : { problem, isKnown: hasRoomToTry(folder) };
  } catch (error) {
    const isKnown = !isOfFullDisk(error) && hasRoomToTry(folder);
    return { problem: messageOf(error), isKnown };
  } finally {
    unmountAll(rootfs);
    await rm(dir, { recursive: true, force: true });
  }
}

/** What counts is what images need: that names and contents can be removed, in layers and above them. */
async function tryToStack(dir: string): Promise<string | undefined> {
  const rootfs = join(dir, "rootfs");
  for (const name of ["lower/of", "over/of", "upper", "work", "rootfs"]) {
    await mkdir(join(dir, name), { recursive: true });
  }
  for (const name of ["kept", "gone", "of/hidden"]) fs.writeFileSync(join(dir, "lower", name), "");
  markRemoved(join(dir, "over/gone"));
  markOpaque(join(dir, "over/of"));
  stack({ trees: dir, names: ["lower", "over"], dir, readonly: false });
  const names = fs.readdirSync(rootfs).toSorted().join(" ");
  const within = fs.readdirSync(join(rootfs, "of")).join(" ");
  if (names !== "kept of" || within !== "") return "what a layer removes stays visible";
  fs.rmSync(join(rootfs, "kept"));
  fs.writeFileSync(join(rootfs, "new"), "");
  fs.renameSync(join(rootfs, "new"), join(rootfs, "kept"));
  fs.rmSync(join(rootfs, "kept"));
  if (fs.readdirSync(rootfs).join(" ") !== "of") return "what a container removes stays visible";
  return undefined;
}

/** Overlayfs makes itself read-only where it finds no room for its own. */
function isOfFullDisk(error: unknown): boolean {
  if (["ENOSPC", "EDQUOT", "EROFS"].includes(errnoOf(error) ?? "")) return true;
  return error instanceof CriError && error.cause !== undefined && isOfFullDisk(error.cause);
}

/** More than the trial takes, of what the kernel does not always say that it lacked. */
function hasRoomToTry(folder: string): boolean {
  const { blocks, bavail, bsize, files, ffree } = fs.statfsSync(folder);
  const [bytesMin, filesMin] = [1 << 20, 64];
  return (blocks === 0 || bavail * bsize > bytesMin) && (files === 0 || ffree > filesMin); // 0: it does not tell
}
