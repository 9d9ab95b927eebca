// The cgroupfs driver creates and removes the cgroups of pods itself.
import { existsSync, mkdirSync, readFileSync, rmdirSync } from "node:fs";
import { dirname, join, posix } from "node:path";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { quoted } from "../base/text.ts";
import { writeKernelFile } from "../sys/file.ts";
import { writeLimits } from "./cgroup_limits.ts";
import { cgroupFolders, isGone, removeCgroup } from "./cgroup.ts";
import type { CgroupDriver, CgroupMounts } from "./cgroup.ts";

/** Default parent of pods; removed with the last of them. */
const ownParent = "/isulad";

/** @param defaultParent the key cgroup-parent; "": /isulad. */
export function cgroupfsDriver(mounts: CgroupMounts, defaultParent: string): CgroupDriver {
  const fallback = defaultParent === "" ? ownParent : checkedParent(defaultParent);
  const podPath = (parent: string, podId: string) =>
    parent === "" ? posix.join(fallback, podId) : checkedParent(parent);
  const containerPath = (parent: string, podId: string, containerId: string) =>
    posix.join(podPath(parent, podId), containerId);
  // Topmost created part of the default parent; removed with the last pod, whichever pod created it.
  let madeAbove: string | undefined;
  return {
    name: "cgroupfs",
    version: mounts.version,
    podCgroup(parent, podId) {
      const path = podPath(parent, podId);
      return { ociParent: path, path, paths: cgroupFolders(mounts, path) };
    },
    containerCgroupsPath: containerPath,
    containerPaths: (parent, podId, containerId) =>
      cgroupFolders(mounts, containerPath(parent, podId, containerId)),
    pathsOf(cgroupsPath) {
      // The runtime would resolve a relative path below its own cgroup.
      if (cgroupsPath.startsWith("/")) return cgroupFolders(mounts, checkedParent(cgroupsPath));
      const text = `cgroups path ${quoted(cgroupsPath)} is not absolute (like /kubepods/pod1/c1)`;
      throw new CriError("INVALID_ARGUMENT", text);
    },
    containerAnnotations: () => Promise.resolve({}),
    missingPodCgroup: (parent, podId) => missingPart(mounts, podPath(parent, podId)),
    async createPodCgroup(parent, podId, signal) {
      const path = podPath(parent, podId);
      const own = parent === "";
      const made = missingPart(mounts, path);
      try {
        create(mounts, path);
      } catch (cause) {
        const leftover = await remove(mounts, { path, own, made }, signal).catch(
          (error: unknown) => `; removing its created part failed too: ${messageOf(error)}`,
        );
        const message = `cannot create cgroup ${path}: ${messageOf(cause)}${leftover ?? ""}`;
        throw new CriError("INTERNAL", message, { cause });
      }
      if (own && made !== undefined && made.length <= fallback.length) madeAbove = made;
      return { made };
    },
    limitPod: async (podId, limits) =>
      writeLimits(cgroupFolders(mounts, podPath("", podId)), limits),
    ownPod: (podId) => ({ parent: "", podId, made: posix.join(fallback, podId) }),
    removePodCgroup: ({ parent, podId, made }, signal) => {
      const own = parent === "";
      const above = own ? madeAbove : undefined;
      return remove(mounts, { path: podPath(parent, podId), own, made, above }, signal);
    },
  };
}

/** own: under the default parent, so the cgroup holds only this pod; above: see madeAbove. */
type Removal = { path: string; own: boolean; made?: string; above?: string };

/** @throws CriError INVALID_ARGUMENT for a path that could leave the hierarchy. */
function checkedParent(parent: string): string {
  const path = posix.normalize(posix.join("/", parent));
  if (path === "/" || parent.split("/").includes("..") || !/^[\x21-\x7e]+$/.test(parent)) {
    const problem = "is not a path below the root (like /kubepods/pod1)";
    throw new CriError("INVALID_ARGUMENT", `cgroup parent "${parent}" ${problem}`);
  }
  return path.endsWith("/") ? path.slice(0, -1) : path;
}

/** Returns the topmost part of path that does not exist yet, or undefined. */
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
      // Another pod's removal may be removing the default parent at this moment.
      if (errnoOf(error) !== "ENOENT" || attempt === 10) throw error;
    }
  }
}

/** Enables all controllers of the root down to path, where runtimes create containers. */
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
        // cpu refuses with real-time processes present; the runtime reports it if the container needs it.
        if (errnoOf(error) !== "EBUSY" && errnoOf(error) !== "EINVAL") throw error;
      }
    }
  }
}

/** Removes the pod's own cgroup, and created folders above it if no other pod uses them. */
async function remove(mounts: CgroupMounts, removal: Removal, signal: AbortSignal): Promise<void> {
  const { made, above, path, own } = removal;
  if (made === undefined) return;
  if (own) await removeCgroup(cgroupFolders(mounts, path), signal);
  const isIn = (at: string, top = "none") => at === top || at.startsWith(`${top}/`);
  const isCreated = (at: string) => isIn(at, made) || isIn(at, above) || at === ownParent;
  for (let at = own ? dirname(path) : path; isCreated(at); at = dirname(at)) {
    removeIfEmpty(mounts, at);
  }
}

function removeIfEmpty(mounts: CgroupMounts, path: string): void {
  for (const folder of new Set(Object.values(cgroupFolders(mounts, path)))) {
    try {
      rmdirSync(folder);
    } catch (error) {
      // EBUSY, ENOTEMPTY: other pods use it.
      if (!isGone(error) && !["EBUSY", "ENOTEMPTY"].includes(errnoOf(error) ?? "")) throw error;
    }
  }
}
