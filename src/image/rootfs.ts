// A container's root file system: an overlay of the image's layers with a folder of its own on top.
import * as fs from "node:fs";
import { mkdir, rm, rmdir } from "node:fs/promises";
import { join } from "node:path";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { MNT_DETACH, mount, mountIdmapped, MS_RDONLY, unmount } from "../sys/mount.ts";

/** A pod's user namespace: its ids from 0 up are this node's from uid and gid up. */
export type RootfsOwner = { userns: string; uid: number; gid: number; count: number };

export type RootfsParts = {
  /** The folder that holds the layers' trees. */
  trees: string;
  /** Names in it, lowest first. */
  lower: string[];
  /** Gets upper, work and rootfs. */
  dir: string;
  /** Nothing can be written to it, not even by who may remount it writable. */
  readonly?: boolean;
  /** Absent: the node's own ids. */
  owner?: RootfsOwner;
  /** SELinux's of all files in it, where it has one. */
  label?: string;
};

/** Mounts stacked by mistake; far more than there ever are. */
const unmountsMax = 16;

// A container's own files do not outlive the boot, so nothing of them must reach the disk in time;
// without this option each removal would sync the whole file system. Kernel 5.10 and newer.
let volatileOption = "volatile,";

/** @returns the path of the mounted root. @throws CriError INTERNAL with the kernel's reason. */
export async function mountOverlay(parts: RootfsParts): Promise<string> {
  const { trees, lower, dir, readonly = false, owner, label } = parts;
  const rootfs = join(dir, "rootfs");
  for (const name of ["upper", "work", "rootfs"]) {
    await mkdir(join(dir, name), { recursive: true, mode: 0o711 });
  }
  const names = lower.length === 0 ? ["empty"] : lower;
  // The top folder's attributes are those of the container's "/".
  const top = fs.lstatSync(join(trees, names.at(-1)!));
  const [uid, gid] = [mapped(top.uid, owner?.uid, owner), mapped(top.gid, owner?.gid, owner)];
  fs.chownSync(join(dir, "upper"), uid, gid);
  fs.chmodSync(join(dir, "upper"), top.mode & 0o7777);
  if (owner === undefined) {
    overlay({ trees, names, dir, readonly, label });
    return rootfs;
  }
  // Overlayfs takes only layers that are mounted somewhere, and keeps its own hold on them.
  const view = join(dir, idmappedName);
  await mkdir(view, { recursive: true, mode: 0o700 });
  try {
    idmap(trees, view, owner.userns);
    overlay({ trees: view, names, dir, readonly, label });
  } finally {
    await unmountView(dir);
  }
  return rootfs;
}

/** Where the layers are for a moment with a user namespace's ids. */
const idmappedName = "idmapped";

/** The node's id of an image's; one that the namespace lacks belongs to its root. */
function mapped(id: number, first: number | undefined, owner: RootfsOwner | undefined): number {
  if (first === undefined || owner === undefined) return id;
  return id < owner.count ? first + id : first;
}

function idmap(trees: string, view: string, userns: string): void {
  const fd = fs.openSync(userns, fs.constants.O_RDONLY);
  try {
    mountIdmapped(trees, view, fd);
  } catch (cause) {
    const message = `cannot mount the layers with a user namespace's ids: ${messageOf(cause)}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause });
  } finally {
    fs.closeSync(fd);
  }
}

async function unmountView(dir: string): Promise<void> {
  const view = join(dir, idmappedName);
  for (let left = unmountsMax; left > 0 && tryUnmount(view); left--);
  await rmdir(view).catch((error: unknown) => {
    if (errnoOf(error) !== "ENOENT") throw error;
  });
}

type OverlayParts = Pick<RootfsParts, "trees" | "dir" | "label"> & {
  names: string[];
  readonly: boolean;
};

function overlay({ trees, names, dir, readonly, label }: OverlayParts): void {
  const rootfs = join(dir, "rootfs");
  const treesFd = fs.openSync(trees, fs.constants.O_RDONLY | fs.constants.O_DIRECTORY);
  const dirFd = fs.openSync(dir, fs.constants.O_RDONLY | fs.constants.O_DIRECTORY);
  try {
    // By descriptor: 127 layers fit into a page of options however long the graph folder's path is,
    // and no comma or colon in it matters.
    const below = names.map((name) => `/proc/self/fd/${treesFd}/${name}`).toReversed();
    const own = `/proc/self/fd/${dirFd}`;
    const context = label === undefined ? "" : `context="${label}",`; // a level has commas
    const options = `${context}index=off,lowerdir=${below.join(":")},upperdir=${own}/upper,workdir=${own}/work`;
    mountWithFallback(rootfs, readonly ? MS_RDONLY : 0, options);
  } catch (error) {
    const hint =
      errnoOf(error) === "EINVAL" ? "; can the graph folder's file system carry overlayfs?" : "";
    const message = `cannot mount ${rootfs}: ${messageOf(error)}${hint}`;
    throw new CriError("INTERNAL", message, { cause: error });
  } finally {
    fs.closeSync(treesFd);
    fs.closeSync(dirFd);
  }
}

function mountWithFallback(rootfs: string, flags: number, options: string): void {
  try {
    mount("overlay", rootfs, "overlay", flags, volatileOption + options);
  } catch (error) {
    if (errnoOf(error) !== "EINVAL" || volatileOption === "") throw error;
    mount("overlay", rootfs, "overlay", flags, options);
    volatileOption = "";
  }
}

/** Where what a container writes outside its mounts lies; dir: as for mountOverlay. */
export function writableLayer(dir: string): string {
  return join(dir, "upper");
}

/** Unmounts and removes upper, work and rootfs; what is not there is no error. */
export async function unmountOverlay(dir: string): Promise<void> {
  const rootfs = join(dir, "rootfs");
  for (let left = unmountsMax; left > 0 && tryUnmount(rootfs); left--);
  await unmountView(dir); // of a mounting that was cut off
  try {
    await rmdir(rootfs); // never recursively: it might still be a mount
  } catch (error) {
    if (errnoOf(error) !== "ENOENT") {
      const message = `cannot remove ${rootfs}: ${messageOf(error)}`;
      throw new CriError("INTERNAL", message, { cause: error });
    }
  }
  await rm(join(dir, "work"), { recursive: true, force: true });
  await rm(join(dir, "upper"), { recursive: true, force: true });
}

/** False when nothing is mounted there. */
function tryUnmount(rootfs: string): boolean {
  try {
    unmount(rootfs);
  } catch (error) {
    const code = errnoOf(error);
    if (code === "EINVAL" || code === "ENOENT") return false;
    if (code !== "EBUSY") throw error;
    unmount(rootfs, MNT_DETACH);
  }
  return true;
}

/** Overlays under a folder that this node has mounted now: container folder → lower names. */
export function mountedOverlays(graph: string): Map<string, string[]> {
  const found = new Map<string, string[]>();
  for (const line of fs.readFileSync("/proc/self/mountinfo", "utf8").split("\n")) {
    const [, , , , at, ...rest] = line.split(" ");
    const dash = rest.indexOf("-");
    if (at === undefined || rest[dash + 1] !== "overlay") continue;
    const path = unescape(at);
    if (!path.startsWith(`${graph}/`) || !path.endsWith("/rootfs")) continue;
    const lower = /(?:^|,)lowerdir=([^,]*)/.exec(rest[dash + 3] ?? "")?.[1] ?? "";
    const names = lower.split(":").map((tree) => tree.slice(tree.lastIndexOf("/") + 1));
    found.set(path.slice(0, -"/rootfs".length), names);
  }
  return found;
}

/** mountinfo writes space, tab, newline and backslash as octal. */
function unescape(path: string): string {
  return path.replace(/\\([0-7]{3})/g, (_, digits: string) =>
    String.fromCharCode(Number.parseInt(digits, 8)),
  );
}
