// The cgroupfs driver: cgroups are folders that we make and remove ourselves.
import { existsSync, mkdirSync, readFileSync, rmdirSync } from "node:fs";
import { dirname, join, posix } from "node:path";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { quoted } from "../base/text.ts";
import { writeKernelFile } from "../sys/file.ts";
import { writeLimits } from "./cgroup_limits.ts";
import {
  cgroupFolders,
  isGone,
  removeCgroup,
  type CgroupDriver,
  type CgroupMounts,
} from "./cgroup.ts";

/** Parent of pods that come without one; ours, so it goes with the last of them. */
const ownParent = "/isulad";

/** @param defaultParent the key cgroup-parent; "" for our own. */
export function cgroupfsDriver(mounts: CgroupMounts, defaultParent: string): CgroupDriver {
  const fallback = defaultParent === "" ? ownParent : checkedParent(defaultParent);
  const podPath = (parent: string, podId: string) =>
    parent === "" ? posix.join(fallback, podId) : checkedParent(parent);
  const containerPath = (parent: string, podId: string, containerId: string) =>
    posix.join(podPath(parent, podId), containerId);
  // Above the pods; whichever pod made it, the last one takes it away.
  let madeAbove: string | undefined;
  return {
    name: "cgroupfs",
    version: mounts.version,
    podCgroup(parent, podId) {
      const ociParent = podPath(parent, podId);
      return { ociParent, paths: cgroupFolders(mounts, ociParent) };
    },
    containerCgroupsPath: containerPath,
    containerPaths: (parent, podId, containerId) =>
      cgroupFolders(mounts, containerPath(parent, podId, containerId)),
    pathsOf(cgroupsPath) {
      // To the runtime a relative one lies below its own cgroup.
      if (cgroupsPath.startsWith("/")) return cgroupFolders(mounts, checkedParent(cgroupsPath));
      const text = `cgroups path ${quoted(cgroupsPath)} is not absolute (like /kubepods/pod1/c1)`;
      throw new CriError("INVALID_ARGUMENT", text);
    },
    containerAnnotations: () => ({}),
    missingPodCgroup: (parent, podId) => missingPart(mounts, podPath(parent, podId)),
    async createPodCgroup(parent, podId, signal) {
      const path = podPath(parent, podId);
      const own = parent === "";
      const made = missingPart(mounts, path);
      try {
        create(mounts, path);
      } catch (cause) {
        const left = await remove(mounts, { path, own, made, above: undefined }, signal).catch(
          (error: unknown) => `; removing the part that was made failed too: ${messageOf(error)}`,
        );
        const message = `cannot make cgroup ${path}: ${messageOf(cause)}${left ?? ""}`;
        throw new CriError("INTERNAL", message, { cause });
      }
      if (own && made !== undefined && made.length <= fallback.length) madeAbove = made;
      return { made };
    },
    limitPod: (podId, limits) => writeLimits(cgroupFolders(mounts, podPath("", podId)), limits),
    ownPod: (podId) => ({ parent: "", podId, made: posix.join(fallback, podId) }),
    removePodCgroup: ({ parent, podId, made }, signal) => {
      const own = parent === "";
      const above = own ? madeAbove : undefined;
      return remove(mounts, { path: podPath(parent, podId), own, made, above }, signal);
    },
  };
}

/** own: one of ours below our parent, which holds nothing but this pod. */
type PodCgroup = {
  path: string;
  own: boolean;
  made: string | undefined;
  above: string | undefined;
};

/** @throws CriError INVALID_ARGUMENT for a path that could leave the hierarchy. */
function checkedParent(parent: string): string {
  const path = posix.normalize(posix.join("/", parent));
  if (path === "/" || parent.split("/").includes("..") || !/^[\x21-\x7e]+$/.test(parent)) {
    throw new CriError(
      "INVALID_ARGUMENT",
      `cgroup parent "${parent}" is not a path below the root (like /kubepods/pod1)`,
    );
  }
  return path.endsWith("/") ? path.slice(0, -1) : path;
}

/** The topmost part of path that does not exist yet; undefined when all of it does. */
function missingPart(mounts: CgroupMounts, path: string): string | undefined {
  const probe =
    mounts.roots["unified"] ?? mounts.roots["memory"] ?? Object.values(mounts.roots)[0]!;
  let missing: string | undefined;
  for (let at = path; at !== "/" && !existsSync(join(probe, at)); at = dirname(at)) {
    if (at !== ownParent) missing = at;
  }
  return missing;
}

function create(mounts: CgroupMounts, path: string): void {
  for (const folder of new Set(Object.values(cgroupFolders(mounts, path)))) makeFolder(folder);
  if (mounts.version === 2) enableControllers(mounts.roots["unified"]!, path);
}

function makeFolder(folder: string): void {
  for (let attempt = 0; ; attempt++) {
    try {
      mkdirSync(folder, { recursive: true });
      return;
    } catch (error) {
      // The last pod of our own parent may be going at this moment, and takes the parent along.
      if (errnoOf(error) !== "ENOENT" || attempt === 10) throw error;
    }
  }
}

/** Hands every controller that the root has down to path, where runtimes make containers. */
function enableControllers(root: string, path: string): void {
  let folder = root;
  for (const name of path.split("/")) {
    folder = join(folder, name);
    const available = readFileSync(join(folder, "cgroup.controllers"), "utf8").trim();
    const enabled = readFileSync(join(folder, "cgroup.subtree_control"), "utf8").split(/\s+/);
    for (const controller of available.split(" ")) {
      if (controller === "" || enabled.includes(controller)) continue;
      try {
        writeKernelFile(join(folder, "cgroup.subtree_control"), `+${controller}`);
      } catch (error) {
        // A controller may refuse (cpu with real-time processes); the runtime says so if it matters.
        if (errnoOf(error) !== "EBUSY" && errnoOf(error) !== "EINVAL") throw error;
      }
    }
  }
}

/** The pod's own cgroup must go; what was made above it goes when no other pod is in it. */
async function remove(mounts: CgroupMounts, pod: PodCgroup, signal: AbortSignal): Promise<void> {
  const { made, above, path, own } = pod;
  if (made === undefined) return;
  if (own) {
    await removeCgroup(cgroupFolders(mounts, path), signal);
  }
  const isIn = (at: string, top = "none") => at === top || at.startsWith(`${top}/`);
  const isOurs = (at: string) => isIn(at, made) || isIn(at, above) || at === ownParent;
  for (let at = own ? dirname(path) : path; isOurs(at); at = dirname(at)) {
    removeIfEmpty(mounts, at);
  }
}

function removeIfEmpty(mounts: CgroupMounts, path: string): void {
  for (const folder of new Set(Object.values(cgroupFolders(mounts, path)))) {
    try {
      rmdirSync(folder);
    } catch (error) {
      // Other pods live in it.
      if (!isGone(error) && !["EBUSY", "ENOTEMPTY"].includes(errnoOf(error) ?? "")) throw error;
    }
  }
}
