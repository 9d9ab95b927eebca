// Mounts a container's root file system: its image's layers below a writable layer.
//
//   DIR/upper    the writable layer; without overlayfs it also holds the copy of all layers
//   DIR/work     overlayfs's work folder
//   DIR/rootfs   the mount point: of the overlay, or of upper itself
import * as fs from "node:fs";
import { mkdir, rmdir } from "node:fs/promises";
import { join } from "node:path";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { MNT_DETACH, mount, MS_BIND, MS_RDONLY, MS_REMOUNT } from "../sys/mount.ts";
import { mountPoints } from "../sys/mount_table.ts";
import { unmountInThread } from "../sys/unmount_thread.ts";
import { shifted, type CopyJob } from "./job_copy.ts";
import { copyAttributes } from "./kept_attributes.ts";
import { mountOverlay, unmountAll, unmountView } from "./overlay.ts";
import type { OverlayOption } from "./overlay_paths.ts";
import { isOpaque } from "./whiteouts.ts";
import type { ContainerQuota } from "./container_quota.ts";
import { removeTree } from "../sys/remove_tree.ts";

/** A pod's user namespace: maps `count` ids, from 0 up, to this node's ids from uid and gid up. */
export type RootfsOwner = { userns: string; uid: number; gid: number; count: number };

export type RootfsParts = {
  /** The folder that holds the layers' trees. */
  trees: string;
  /** Names in it, lowest first. */
  lower: string[];
  /** The folder for upper, work and rootfs. */
  dir: string;
  /** Prevents writes even by a container that can remount its root writable. */
  readonly?: boolean;
  /** Absent: ids are not mapped. */
  owner?: RootfsOwner;
  label?: string;
};

/** The node's means of making roots. */
export type RootfsMaker = {
  /** Copies layers; present when the storage driver is native. */
  copy?: ((job: CopyJob) => Promise<void>) | undefined;
  /** Present when writable layers are limited. */
  quota?: ContainerQuota | undefined;
  overlayOptions?: readonly OverlayOption[];
};

/** @returns the path of the mounted root. @throws CriError INTERNAL with the kernel's reason. */
export async function mountRootfs(parts: RootfsParts, maker: RootfsMaker): Promise<string> {
  const { trees, lower, dir, readonly = false, owner, label } = parts;
  const { copy, quota, overlayOptions: options } = maker;
  const own = copy === undefined ? ["upper", "work"] : ["upper"];
  for (const name of [...own, "rootfs"]) {
    await mkdir(join(dir, name), { recursive: true, mode: 0o711 });
  }
  const limited = quota !== undefined && !readonly;
  if (limited) quota.assign(own.map((name) => join(dir, name)));
  const names = lower.length === 0 ? ["empty"] : lower;
  if (copy === undefined) {
    setRootAttributes(join(trees, names.at(-1)!), dir, owner);
    // overlayfs merges the roots of all layers that it is given, opaque or not.
    const opaque = names.findLastIndex((name) => isOpaque(join(trees, name)));
    const shown = names.slice(Math.max(0, opaque));
    const userns = owner?.userns;
    await mountOverlay({ trees, names: shown, dir, readonly, userns, label, options });
  } else {
    const from = names.map((name) => join(trees, name));
    await copy({ kind: "copy", trees: from, folder: join(dir, "upper"), shift: owner, label });
    mountCopy(dir, readonly);
  }
  if (limited) quota.setLimit(join(dir, "upper"));
  return join(dir, "rootfs");
}

/**
 * Copies the top layer's owner, mode, and, where ids are not shifted, its ACL and other attributes to the upper folder,
 * which overlayfs shows as "/".
 */
function setRootAttributes(top: string, dir: string, owner: RootfsOwner | undefined): void {
  const { uid, gid, mode } = fs.lstatSync(top);
  const upper = join(dir, "upper");
  fs.chownSync(upper, shifted(uid, owner?.uid, owner), shifted(gid, owner?.gid, owner));
  fs.chmodSync(upper, mode & 0o7777);
  if (owner !== undefined) return; // an ACL has ids, too
  copyAttributes(top, upper);
}

/** Bind-mounts the copy, so that code which looks for a mounted root finds one. */
function mountCopy(dir: string, readonly: boolean): void {
  const rootfs = join(dir, "rootfs");
  try {
    mount(join(dir, "upper"), rootfs, "", MS_BIND);
    if (readonly) mount("", rootfs, "", MS_BIND | MS_REMOUNT | MS_RDONLY);
  } catch (cause) {
    throw new CriError("INTERNAL", `cannot mount ${rootfs}: ${messageOf(cause)}`, { cause });
  }
}

/** Returns the path of a container's writable layer; dir: as for mountRootfs. */
export function writableLayer(dir: string): string {
  return join(dir, "upper");
}

/**
 * Fills another folder of a mounted root's container, which shares the limit of its writable layer. As with a copy of
 * the layers, what it is filled with does not count: the image may hold more than a container may write.
 */
export async function fillLimited(
  dir: string,
  folder: string,
  { fill, quota }: { fill: () => Promise<void> } & Pick<RootfsMaker, "quota">,
): Promise<void> {
  const upper = join(dir, "upper");
  quota?.clearLimit(upper);
  quota?.share(upper, folder);
  await fill();
  quota?.setLimit(upper);
}

/** Unmounts rootfs and removes upper, work and rootfs; missing ones are no error. */
export async function unmountRootfs(
  dir: string,
  { quota }: Pick<RootfsMaker, "quota"> = {},
): Promise<void> {
  const rootfs = join(dir, "rootfs");
  await unmountRoot(dir);
  await unmountView(dir); // left by a mount that was interrupted
  await removeMountPoint(rootfs);
  quota?.clearLimit(join(dir, "upper"));
  await removeTree(join(dir, "work"));
  await removeTree(join(dir, "upper"));
}

/** Removes the mount point; what is in it only if nothing is mounted there, which would be emptied, too. */
async function removeMountPoint(rootfs: string): Promise<void> {
  try {
    await rmdir(rootfs).catch(async (error: unknown) => {
      if (errnoOf(error) !== "ENOTEMPTY") throw error;
      // Another program unmounted it and put files there.
      for (const path of mountPoints(rootfs).toReversed()) unmountAll(path);
      const [mounted] = mountPoints(rootfs);
      if (mounted !== undefined) throw new Error(`${mounted} is still mounted`);
      await removeTree(rootfs);
    });
  } catch (cause) {
    if (errnoOf(cause) === "ENOENT") return;
    throw new CriError("INTERNAL", `cannot remove ${rootfs}: ${messageOf(cause)}`, { cause });
  }
}

/** More mounts than are ever stacked on a root. */
const rootsMax = 16;

/** Unmounts all that is mounted on the root, in a thread: it may take as long as the disk. */
async function unmountRoot(dir: string): Promise<void> {
  const rootfs = join(dir, "rootfs");
  const unmountBy = async (flags: number) => {
    try {
      await unmountInThread(rootfs, { flags, kind: "disk" });
    } catch (error) {
      const code = errnoOf(error);
      if (code === "EBUSY" && flags === 0) await unmountBy(MNT_DETACH);
      else if (code !== "EINVAL" && code !== "ENOENT") throw error; // those: it is unmounted
    }
  };
  for (let left = rootsMax; left > 0 && isRootMounted(dir); left--) await unmountBy(0);
}

/** True while the root is mounted; dir: as for mountRootfs. */
export function isRootMounted(dir: string): boolean {
  const id = mountIdOf(join(dir, "rootfs"));
  return id !== undefined && id !== mountIdOf(dir);
}

/** Returns the id of a folder's mount (a bind mount has no device of its own). */
function mountIdOf(folder: string): string | undefined {
  using open = openFolder(folder);
  if (open === undefined) return undefined;
  return /^mnt_id:\s*(\d+)/m.exec(fs.readFileSync(`/proc/self/fdinfo/${open.fd}`, "utf8"))?.[1];
}

function openFolder(folder: string): Descriptor | undefined {
  try {
    return Descriptor.openFolder(folder);
  } catch (error) {
    if (["ENOENT", "ENOTDIR"].includes(errnoOf(error) ?? "")) return undefined;
    throw error;
  }
}
