// Cgroups as folders: where they are mounted, who is in them, what the kernel counted. The drivers
// (cgroupfs.ts, systemd.ts) decide which folders those are; daemon.ts chooses one.
import { existsSync, readdirSync, readFileSync, rmdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { abortError } from "../base/abort.ts";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import type { OciResources } from "../spec/oci_types.ts";
import { writeKernelFile } from "../sys/file.ts";
import { readMountTable } from "../sys/mount_table.ts";
import { processName } from "../sys/process.ts";

/**
 * Folder of one cgroup by hierarchy: under v2 only "unified"; under v1 by controller ("memory",
 * "name=systemd"), and "hybrid" for a cgroup2 without controllers beside them.
 */
export type CgroupPaths = Record<string, string>;

/** What of a pod's cgroup has to be taken down again: the topmost name that we made. */
export type PodCgroupMade = { made?: string };

/** A pod as createPodCgroup was asked for it, and what that returned. */
export type MadePodCgroup = { parent: string; podId: string } & PodCgroupMade;

export type CgroupDriver = {
  readonly name: "cgroupfs" | "systemd";
  readonly version: 1 | 2;
  /**
   * @param parent the kubelet's cgroup_parent; "" for a pod of our own.
   * @throws CriError INVALID_ARGUMENT for a parent that this driver cannot use.
   */
  podCgroup(parent: string, podId: string): { ociParent: string; paths: CgroupPaths };
  /** OCI's linux.cgroupsPath. */
  containerCgroupsPath(parent: string, podId: string, containerId: string): string;
  containerPaths(parent: string, podId: string, containerId: string): CgroupPaths;
  /**
   * Of a linux.cgroupsPath that somebody else chose.
   * @throws CriError INVALID_ARGUMENT for one that this driver cannot use.
   */
  pathsOf(cgroupsPath: string): CgroupPaths;
  /** Annotations that make the runtime set up the container's cgroup as we need it. */
  containerAnnotations(): Record<string, string>;
  /** The topmost part that createPodCgroup would make, for the record of the intent; undefined: none. */
  missingPodCgroup(parent: string, podId: string): string | undefined;
  createPodCgroup(parent: string, podId: string, signal: AbortSignal): Promise<PodCgroupMade>;
  /**
   * Limits a pod under our own parent: CPU and memory, -1 for none. @throws CriError FAILED_PRECONDITION
   * with what the kernel refuses.
   */
  limitPod(podId: string, limits: OciResources): void;
  /**
   * What removePodCgroup needs for a pod under our own parent whose record is lost. The parent may be
   * another daemon's, too: who asks has to know that the pod was its own.
   */
  ownPod(podId: string): MadePodCgroup;
  /** Idempotent. Removes only what createPodCgroup has made. */
  removePodCgroup(pod: MadePodCgroup, signal: AbortSignal): Promise<void>;
};

export type CgroupMounts = { version: 1 | 2; roots: CgroupPaths };

/** Where this host mounts cgroups; a hybrid host counts as v1, because that is where limits are. */
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
    // Runtimes make their folder in a hybrid host's unified hierarchy as well.
    return { version: 1, roots: unified === undefined ? roots : { ...roots, hybrid: unified } };
  }
  if (unified === undefined) {
    throw new CriError(
      "FAILED_PRECONDITION",
      "no cgroup file system is mounted (expected cgroup2 on /sys/fs/cgroup)",
    );
  }
  return { version: 2, roots: { unified } };
}

const controllers = new Set(
  "cpu cpuacct cpuset memory devices freezer blkio pids hugetlb net_cls net_prio perf_event rdma misc".split(
    " ",
  ),
);

/** Controllers that this host does not have, or has not mounted: limits and figures that need them. */
export function absentControllers({ version, roots }: CgroupMounts): string[] {
  const unified = roots["unified"];
  const there = new Set(
    unified === undefined
      ? Object.keys(roots)
      : readFileSync(join(unified, "cgroup.controllers"), "utf8").trim().split(" "),
  );
  const names = ["cpu", "cpuset", "memory", "pids", "hugetlb", version === 1 ? "blkio" : "io"];
  return names.filter((name) => !there.has(name));
}

/** The folders of the cgroup that lies at path, in each hierarchy once. */
export function cgroupFolders(mounts: CgroupMounts, path: string): CgroupPaths {
  return Object.fromEntries(
    Object.entries(mounts.roots).map(([name, root]) => [name, join(root, path)]),
  );
}

/**
 * Processes that the OOM killer took in this cgroup; undefined once it is gone. Synchronous: under
 * systemd the folder goes with its last process, and whoever waits for a turn of the loop loses.
 */
export function oomKills(paths: CgroupPaths): bigint | undefined {
  const file =
    paths["unified"] === undefined
      ? join(paths["memory"] ?? "", "memory.oom_control")
      : join(paths["unified"], "memory.events");
  try {
    return parseOomKills(readFileSync(file, "utf8"));
  } catch (error) {
    if (isGone(error)) return undefined;
    throw error;
  }
}

/** The oom_kill line of memory.events (v2) or memory.oom_control (v1); 0 where there is none. */
export function parseOomKills(text: string): bigint {
  const count = /^oom_kill (\d+)$/m.exec(text)?.[1];
  return count === undefined ? 0n : BigInt(count);
}

/** The CPUs and memory nodes that a cgroup's parent has, and so those of one that asks for none. */
export function parentCpuset(paths: CgroupPaths): { cpus?: string; mems?: string } {
  const folder = dirname(paths["unified"] ?? paths["cpuset"] ?? "");
  const suffix = paths["unified"] === undefined ? "" : ".effective";
  const read = (name: string) => {
    try {
      return readFileSync(join(folder, `cpuset.${name}${suffix}`), "utf8").trim() || undefined;
    } catch (error) {
      if (isGone(error)) return undefined; // no such controller
      throw error;
    }
  };
  return { cpus: read("cpus"), mems: read("mems") };
}

/** Pids in the cgroup and all cgroups below it; none once it is gone. */
export function processes(paths: CgroupPaths): number[] {
  const pids = new Set<number>();
  // v1: one hierarchy is enough, since a runtime joins all; freezer is also the one that kills.
  const folder = paths["unified"] ?? paths["freezer"] ?? paths["memory"] ?? Object.values(paths)[0];
  if (folder !== undefined) collectPids(folder, pids);
  return [...pids];
}

/**
 * SIGKILLs everything in the cgroup, forks in flight too, and waits until it is empty.
 * @throws CriError CANCELLED or DEADLINE_EXCEEDED with what is left when the signal aborts.
 */
export async function killAll(paths: CgroupPaths, signal: AbortSignal): Promise<void> {
  for (let waitMs = 1; ; waitMs = Math.min(waitMs * 2, 100)) {
    killOnce(paths);
    const left = processes(paths);
    if (left.length === 0) return;
    if (signal.aborted) throw abortError(survivors(paths), signal);
    await sleep(waitMs);
  }
}

/** A cgroup stays busy for a moment after its last process is reaped. */
const removeRetriesMax = 100;
const removeRetryMs = 5;

/**
 * Removes a cgroup and those below it; it may be gone.
 * @throws CriError FAILED_PRECONDITION when processes are left in it.
 */
export async function removeCgroup(paths: CgroupPaths, signal: AbortSignal): Promise<void> {
  for (const folder of new Set(Object.values(paths))) await removeSoon(folder, signal);
}

async function removeSoon(folder: string, signal: AbortSignal): Promise<void> {
  for (let attempt = 0; ; attempt++) {
    try {
      return removeTree(folder);
    } catch (error) {
      if (errnoOf(error) !== "EBUSY" || attempt === removeRetriesMax || signal.aborted) {
        throw new CriError(
          "FAILED_PRECONDITION",
          `cannot remove cgroup ${folder}: ${messageOf(error)}`,
          { cause: error },
        );
      }
      await sleep(removeRetryMs);
    }
  }
}

function removeTree(folder: string): void {
  try {
    for (const entry of readdirSync(folder, { withFileTypes: true })) {
      if (entry.isDirectory()) removeTree(join(folder, entry.name));
    }
    rmdirSync(folder);
  } catch (error) {
    if (!isGone(error)) throw error;
  }
}

/** Who is left, for a message: what sleeps uninterruptibly (state D) dies when the kernel lets it. */
export function survivors(paths: CgroupPaths): string {
  const left = processes(paths);
  // An init is gone only when its namespace's processes have been reaped by their parents outside.
  if (left.length === 0) return "its cgroup is empty, but its first process is still ending";
  const told = left.slice(0, 8).map((pid) => `${pid} (${processName(pid)})`);
  return `SIGKILL has not ended process ${told.join(", ")}${left.length > 8 ? ", …" : ""}`;
}

/** SIGKILL to everything in the cgroup, without waiting. */
export function killOnce(paths: CgroupPaths): void {
  const { unified, freezer } = paths;
  if (unified !== undefined && existsSync(join(unified, "cgroup.kill"))) {
    ignoreGone(() => writeKernelFile(join(unified, "cgroup.kill"), "1"));
    return;
  }
  // Frozen, nothing can fork away between the reading of a pid and its signal.
  const freeze = (state: string) => {
    if (freezer !== undefined) {
      ignoreGone(() => writeKernelFile(join(freezer, "freezer.state"), state));
    }
  };
  freeze("FROZEN");
  try {
    for (const pid of processes(paths)) ignoreGone(() => process.kill(pid, "SIGKILL"));
  } finally {
    freeze("THAWED");
  }
}

function collectPids(folder: string, pids: Set<number>): void {
  try {
    for (const line of readProcs(folder).split("\n")) {
      if (line !== "" && line !== "0") pids.add(Number(line));
    }
    for (const entry of readdirSync(folder, { withFileTypes: true })) {
      if (entry.isDirectory()) collectPids(join(folder, entry.name), pids);
    }
  } catch (error) {
    if (!isGone(error)) throw error;
  }
}

/** A threaded cgroup (v2) has no list: its processes stand in the one above. */
function readProcs(folder: string): string {
  try {
    return readFileSync(join(folder, "cgroup.procs"), "utf8");
  } catch (error) {
    if (["EOPNOTSUPP", "ENOTSUP"].includes(errnoOf(error) ?? "")) return "";
    throw error;
  }
}

function ignoreGone(action: () => void): void {
  try {
    action();
  } catch (error) {
    if (!isGone(error)) throw error;
  }
}

/** A cgroup that vanishes gives ENOENT by name, ENODEV by an open file; a process ESRCH. */
export function isGone(error: unknown): boolean {
  return ["ENOENT", "ENODEV", "ESRCH"].includes(errnoOf(error) ?? "");
}
