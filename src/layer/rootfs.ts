// A container's root file system: what its image's layers hold, with a folder of its own to write to.
//
//   DIR/upper    what the container writes; without overlayfs also the copy of all layers
//   DIR/work     overlayfs's own
//   DIR/rootfs   where it is mounted: the overlay, or upper itself
import * as fs from "node:fs";
import { mkdir, rm, rmdir } from "node:fs/promises";
import { join } from "node:path";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { mount, MS_BIND, MS_RDONLY, MS_REMOUNT } from "../sys/mount.ts";
import { mountPoints } from "../sys/mount_table.ts";
import { shifted, type CopyJob } from "./copy.ts";
import { mountOverlay, unmountView } from "./overlay.ts";
import type { LayerQuota } from "./quota.ts";
import { unmountAll } from "./unmount.ts";

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

/** What the node's roots are made by. */
export type RootfsMaker = {
  /** Present where layers cannot be stacked: copies them. */
  copy?: ((job: CopyJob) => Promise<void>) | undefined;
  /** Present where what containers write is limited. */
  quota?: LayerQuota | undefined;
};

/** @returns the path of the mounted root. @throws CriError INTERNAL with the kernel's reason. */
export async function mountRootfs(parts: RootfsParts, maker: RootfsMaker): Promise<string> {
  const { trees, lower, dir, readonly = false, owner, label } = parts;
  const { copy, quota } = maker;
  const own = copy === undefined ? ["upper", "work"] : ["upper"];
  for (const name of [...own, "rootfs"]) {
    await mkdir(join(dir, name), { recursive: true, mode: 0o711 });
  }
  const limited = quota !== undefined && !readonly;
  if (limited) quota.begin(own.map((name) => join(dir, name)));
  const names = lower.length === 0 ? ["empty"] : lower;
  if (copy === undefined) {
    dressUpper(join(trees, names.at(-1)!), dir, owner);
    await mountOverlay({ trees, names, dir, readonly, userns: owner?.userns, label });
  } else {
    const from = names.map((name) => join(trees, name));
    await copy({ kind: "copy", trees: from, folder: join(dir, "upper"), shift: owner, label });
    mountCopy(dir, readonly);
  }
  if (limited) quota.limit(join(dir, "upper"));
  return join(dir, "rootfs");
}

/** The top folder's attributes are those of the container's "/". */
function dressUpper(top: string, dir: string, owner: RootfsOwner | undefined): void {
  const { uid, gid, mode } = fs.lstatSync(top);
  const upper = join(dir, "upper");
  fs.chownSync(upper, shifted(uid, owner?.uid, owner), shifted(gid, owner?.gid, owner));
  fs.chmodSync(upper, mode & 0o7777);
}

/** A mount like an overlay's, so that all that looks for one finds it. */
function mountCopy(dir: string, readonly: boolean): void {
  const rootfs = join(dir, "rootfs");
  try {
    mount(join(dir, "upper"), rootfs, "", MS_BIND);
    if (readonly) mount("", rootfs, "", MS_BIND | MS_REMOUNT | MS_RDONLY);
  } catch (cause) {
    throw new CriError("INTERNAL", `cannot mount ${rootfs}: ${messageOf(cause)}`, { cause });
  }
}

/** Where what a container writes outside its mounts lies; dir: as for mountRootfs. */
export function writableLayer(dir: string): string {
  return join(dir, "upper");
}

/** Unmounts and removes upper, work and rootfs; what is not there is no error. */
export async function unmountRootfs(
  dir: string,
  { quota }: Pick<RootfsMaker, "quota"> = {},
): Promise<void> {
  const rootfs = join(dir, "rootfs");
  unmountAll(rootfs);
  await unmountView(dir); // of a mounting that was cut off
  await removePlace(rootfs);
  quota?.end(join(dir, "upper"));
  await rm(join(dir, "work"), { recursive: true, force: true });
  await rm(join(dir, "upper"), { recursive: true, force: true });
}

/** Never recursively while something is mounted there. */
async function removePlace(rootfs: string): Promise<void> {
  try {
    await rmdir(rootfs).catch(async (error: unknown) => {
      if (errnoOf(error) !== "ENOTEMPTY") throw error;
      // It was unmounted by somebody else, who or whose runtime has put something there.
      for (const path of mountPoints(rootfs).toReversed()) unmountAll(path);
      const [mounted] = mountPoints(rootfs);
      if (mounted !== undefined) throw new Error(`${mounted} is still mounted`);
      await rm(rootfs, { recursive: true, force: true });
    });
  } catch (cause) {
    if (errnoOf(cause) === "ENOENT") return;
    throw new CriError("INTERNAL", `cannot remove ${rootfs}: ${messageOf(cause)}`, { cause });
  }
}

/** Whether a root is mounted still; dir: as for mountRootfs. */
export function isRootMounted(dir: string): boolean {
  const id = mountIdOf(join(dir, "rootfs"));
  return id !== undefined && id !== mountIdOf(dir);
}

/** Of the mount that a folder lies on; undefined: it is not there. A bind mount has no other device. */
function mountIdOf(folder: string): string | undefined {
  using open = openFolder(folder);
  if (open === undefined) return undefined;
  return /^mnt_id:\s*(\d+)/m.exec(fs.readFileSync(`/proc/self/fdinfo/${open.fd}`, "utf8"))?.[1];
}

function openFolder(folder: string): Descriptor | undefined {
  try {
    return Descriptor.open(folder, fs.constants.O_RDONLY | fs.constants.O_DIRECTORY);
  } catch (error) {
    if (["ENOENT", "ENOTDIR"].includes(errnoOf(error) ?? "")) return undefined;
    throw error;
  }
}
