// Finds, reads, kills and removes cgroups through their folders. The drivers (cgroupfs.ts, systemd.ts) name
// the folders; daemon.ts chooses a driver.
import { existsSync, readdirSync, readFileSync, rmdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { abortError } from "../base/abort.ts";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import type { OciResources } from "../spec/oci_types.ts";
import { readKernelFile, writeKernelFile } from "../sys/file.ts";
import { readMountTable } from "../sys/mount_table.ts";
import { processName } from "../sys/process.ts";
import { parseKeyed } from "./cgroup_file.ts";

/**
 * The folders of one cgroup by hierarchy: under v2 only "unified"; under v1 by controller ("memory",
 * "name=systemd"), plus "hybrid" for an additional cgroup2 without controllers.
 */
export type CgroupPaths = Record<string, string>;

/** A pod's cgroup; made: the topmost part of its path that createPodCgroup created, so must be removed. */
type PodCgroup = { parent: string; podId: string; made?: string };

export type CgroupDriver = {
  readonly name: "cgroupfs" | "systemd";
  readonly version: 1 | 2;
  /**
   * Returns the pod's cgroup as runtimes name it, its path below the root of each hierarchy, and its folders.
   * @param parent the kubelet's cgroup_parent; "" for the configured default.
   * @throws CriError INVALID_ARGUMENT for a parent that this driver cannot use.
   */
  podCgroup(parent: string, podId: string): { ociParent: string; path: string; paths: CgroupPaths };
  /** Returns OCI's linux.cgroupsPath. */
  containerCgroupsPath(parent: string, podId: string, containerId: string): string;
  /** Those of a container whose cgroupsPath is in no record. */
  containerPaths(parent: string, podId: string, containerId: string): CgroupPaths;
  /**
   * Returns the folders of a linux.cgroupsPath, which an NRI plugin may have chosen.
   * @throws CriError INVALID_ARGUMENT for a path that this driver cannot use.
   */
  pathsOf(cgroupsPath: string): CgroupPaths;
  /**
   * Returns annotations that make the runtime set up the container's cgroup as required.
   * @throws CriError UNAVAILABLE if systemd does not answer.
   */
  containerAnnotations(signal: AbortSignal): Promise<Record<string, string>>;
  /** Returns the topmost part that createPodCgroup would create, so that the caller can record it first. */
  missingPodCgroup(parent: string, podId: string): string | undefined;
  createPodCgroup(parent: string, podId: string, signal: AbortSignal): Promise<{ made?: string }>;
  /**
   * Sets CPU and memory limits of a pod under the default parent; -1: none. @throws CriError
   * FAILED_PRECONDITION with the value that the kernel or systemd refuses.
   */
  limitPod(podId: string, limits: OciResources, signal: AbortSignal): Promise<void>;
  /**
   * Returns removePodCgroup's argument for a pod under the default parent whose record is lost. Another
   * daemon may share that parent: the caller must know that the pod was its own.
   */
  ownPod(podId: string): PodCgroup;
  /** Idempotent. Removes only what createPodCgroup has created. */
  removePodCgroup(pod: PodCgroup, signal: AbortSignal): Promise<void>;
};

export type CgroupMounts = { version: 1 | 2; roots: CgroupPaths };

/** Finds the host's cgroup mounts; a hybrid host counts as v1, whose hierarchies have its controllers. */
export function cgroupMounts(table = readMountTable()): CgroupMounts {
  const roots: CgroupPaths = {};
  let unified: string | undefined;
  for (const { type, point, options } of table) {
    if (type === "cgroup2") unified ??= point;
    if (type !== "cgroup") continue;
    for (const option of options.split(",")) {
      if (controllers.has(option) || option.startsWith("name=")) roots[option] ??= point;
    }
  }
  if (Object.keys(roots).some((name) => controllers.has(name))) {
    // Runtimes create a container's cgroup in a hybrid host's unified hierarchy as well.
    return { version: 1, roots: unified === undefined ? roots : { ...roots, hybrid: unified } };
  }
  if (unified === undefined) {
    const problem = "no cgroup file system is mounted (expected cgroup2 on /sys/fs/cgroup)";
    throw new CriError("FAILED_PRECONDITION", problem);
  }
  return { version: 2, roots: { unified } };
}

const controllerNames =
  "cpu cpuacct cpuset memory devices freezer blkio pids hugetlb net_cls net_prio perf_event rdma misc";
const controllers = new Set(controllerNames.split(" "));

/** Lists the controllers that this host lacks or has not mounted. */
export function absentControllers({ version, roots }: CgroupMounts): string[] {
  const unified = roots["unified"];
  const available = new Set(
    unified === undefined
      ? Object.keys(roots)
      : readFileSync(join(unified, "cgroup.controllers"), "utf8").trim().split(" "),
  );
  const names = ["cpu", "cpuset", "memory", "pids", "hugetlb", version === 1 ? "blkio" : "io"];
  return names.filter((name) => !available.has(name));
}

/** Returns the folder of a cgroup in each hierarchy. */
export function cgroupFolders(mounts: CgroupMounts, path: string): CgroupPaths {
  return Object.fromEntries(
    Object.entries(mounts.roots).map(([name, root]) => [name, join(root, path)]),
  );
}

/**
 * Returns the number of OOM kills in this cgroup; undefined once it has been removed. Synchronous: systemd
 * removes a scope with its last process, so a turn of the event loop may be too late.
 */
export function oomKills(paths: CgroupPaths): bigint | undefined {
  const file =
    paths["unified"] === undefined
      ? join(paths["memory"] ?? "", "memory.oom_control")
      : join(paths["unified"], "memory.events");
  const text = readKernelFile(file);
  return text === undefined ? undefined : parseOomKills(text);
}

/** Reads the oom_kill line of memory.events (v2) or memory.oom_control (v1); 0 without one. */
export function parseOomKills(text: string): bigint {
  return parseKeyed(text)("oom_kill") ?? 0n;
}

/** Returns the CPUs and memory nodes of a cgroup's parent, which a cgroup without a setting inherits. */
export function parentCpuset(paths: CgroupPaths): { cpus?: string; mems?: string } {
  const folder = dirname(paths["unified"] ?? paths["cpuset"] ?? "");
  const suffix = paths["unified"] === undefined ? "" : ".effective";
  // Without a cpuset controller there are no files.
  const read = (name: string) =>
    readKernelFile(join(folder, `cpuset.${name}${suffix}`))?.trim() || undefined;
  return { cpus: read("cpus"), mems: read("mems") };
}

/** Lists the pids in the cgroup and all cgroups below it; empty once it has been removed. */
export function processes(paths: CgroupPaths): number[] {
  const pids = new Set<number>();
  // v1: one hierarchy suffices, since a runtime joins all. Prefer freezer, which killOnce() uses.
  const folder = paths["unified"] ?? paths["freezer"] ?? paths["memory"] ?? Object.values(paths)[0];
  if (folder !== undefined) collectPids(folder, pids);
  return [...pids];
}

/**
 * Sends SIGKILL to all processes of the cgroup, including concurrent forks, and waits until it is empty.
 * @throws CriError CANCELLED or DEADLINE_EXCEEDED naming the survivors when the signal aborts.
 */
export async function killAll(paths: CgroupPaths, signal: AbortSignal): Promise<void> {
  for (let waitMs = 1; ; waitMs = Math.min(waitMs * 2, 100)) {
    killOnce(paths);
    if (processes(paths).length === 0) return;
    if (signal.aborted) throw abortError(survivors(paths), signal);
    await sleep(waitMs);
  }
}

/** The kernel returns EBUSY for a moment after the last process is reaped. */
const removeRetriesMax = 100;
const removeRetryMs = 5;

/**
 * Removes a cgroup and those below it. Idempotent.
 * @throws CriError FAILED_PRECONDITION when processes remain in it.
 */
export async function removeCgroup(paths: CgroupPaths, signal: AbortSignal): Promise<void> {
  for (const folder of new Set(Object.values(paths))) await removeRetrying(folder, signal);
}

async function removeRetrying(folder: string, signal: AbortSignal): Promise<void> {
  for (let attempt = 0; ; attempt++) {
    try {
      return removeTree(folder);
    } catch (cause) {
      if (errnoOf(cause) !== "EBUSY" || attempt === removeRetriesMax || signal.aborted) {
        const message = `cannot remove cgroup ${folder}: ${messageOf(cause)}`;
        throw new CriError("FAILED_PRECONDITION", message, { cause });
      }
      await sleep(removeRetryMs);
    }
  }
}

/** Lists a folder, which takes a descriptor, only if it exists: a rollback may have none left. */
function removeTree(folder: string): void {
  if (!existsSync(folder)) return;
  try {
    for (const entry of readdirSync(folder, { withFileTypes: true })) {
      if (entry.isDirectory()) removeTree(join(folder, entry.name));
    }
    rmdirSync(folder);
  } catch (error) {
    if (!isGone(error)) throw error;
  }
}

/** Describes the processes that survived SIGKILL: one in state D dies only when its system call returns. */
export function survivors(paths: CgroupPaths): string {
  const left = processes(paths);
  // A pid namespace's init ends only when processes with parents outside have been reaped by those.
  if (left.length === 0) return "its cgroup is empty, but its first process is still ending";
  const named = left.slice(0, 8).map((pid) => `${pid} (${processName(pid)})`);
  return `SIGKILL has not ended process ${named.join(", ")}${left.length > 8 ? ", …" : ""}`;
}

/** Sends SIGKILL to all processes of the cgroup without waiting. */
export function killOnce(paths: CgroupPaths): void {
  const { unified, freezer } = paths;
  if (unified !== undefined && existsSync(join(unified, "cgroup.kill"))) {
    ignoreGone(() => writeKernelFile(join(unified, "cgroup.kill"), "1"));
    return;
  }
  // Freeze first: otherwise a process could fork between the listing and its signal.
  const setFreezer = (state: "FROZEN" | "THAWED") => {
    if (freezer === undefined) return;
    ignoreGone(() => writeKernelFile(join(freezer, "freezer.state"), state));
  };
  setFreezer("FROZEN");
  try {
    for (const pid of processes(paths)) ignoreGone(() => process.kill(pid, "SIGKILL"));
  } finally {
    setFreezer("THAWED");
  }
}

function collectPids(folder: string, pids: Set<number>): void {
  try {
    // A threaded cgroup (v2) has no process list: its processes appear in the parent's.
    for (const line of (readKernelFile(join(folder, "cgroup.procs")) ?? "").split("\n")) {
      if (line !== "" && line !== "0") pids.add(Number(line));
    }
    for (const entry of readdirSync(folder, { withFileTypes: true })) {
      if (entry.isDirectory()) collectPids(join(folder, entry.name), pids);
    }
  } catch (error) {
    if (!isGone(error)) throw error;
  }
}

function ignoreGone(action: () => void): void {
  try {
    action();
  } catch (error) {
    if (!isGone(error)) throw error;
  }
}

/** A removed cgroup gives ENOENT by path and ENODEV by an open file; an ended process gives ESRCH. */
export function isGone(error: unknown): boolean {
  return ["ENOENT", "ENODEV", "ESRCH"].includes(errnoOf(error) ?? "");
}
