// The systemd driver names slices and scopes: the OCI runtime requests a scope for each container from
// systemd, which creates the pod's slice with the first scope.
import { existsSync } from "node:fs";
import { join, posix } from "node:path";
import { systemdRuns } from "../base/config_host.ts";
import { CriError } from "../base/errors.ts";
import { quoted } from "../base/text.ts";
import { failureOutput, run } from "../sys/run.ts";
import { limitProperties } from "./cgroup_limits.ts";
import {
  cgroupFolders,
  type CgroupDriver,
  type CgroupMounts,
  processes,
  removeCgroup,
} from "./cgroup.ts";
import { removeTree } from "../sys/remove_tree.ts";

/** Default parent of pods. */
const ownParent = "isulad.slice";
/**
 * Scopes are named cri-containerd-<container id>.scope, as containerd names them: by the prefix Falco, Cilium and others
 * tell the processes of containers from those of the host, and know no other one than containerd's, CRI-O's and Docker's.
 */
const scopePrefix = "cri-containerd";
/** That of earlier builds, whose containers may still run. */
const formerPrefix = "isulad";

/** systemd's folder of what `systemctl set-property --runtime` sets. */
const runtimeProperties = "/run/systemd/system.control";

/** Limit, in ms, for systemd's answer to a query. */
const askMs = 10_000;

/** Why pods cannot be started with this driver on a host with another init. */
export const withoutSystemd =
  'the systemd cgroup driver does not work here: systemd is not the init of this host (/run/systemd/system is missing); set "systemd-cgroup": "auto" or false and restart';

/** @param defaultParent the key cgroup-parent; "": isulad.slice. */
export function systemdDriver(
  mounts: CgroupMounts,
  defaultParent: string,
  { properties = runtimeProperties, isRunning = systemdRuns } = {},
): CgroupDriver {
  const fallback = defaultParent === "" ? ownParent : checkedSlice(defaultParent);
  const podSlice = (parent: string, podId: string) =>
    parent === ""
      ? `${fallback.slice(0, -".slice".length)}-pod${podId}.slice`
      : checkedSlice(parent);
  const missingPodCgroup = (parent: string, podId: string) => {
    const slice = podSlice(parent, podId);
    const folder = Object.values(cgroupFolders(mounts, slicePath(slice)))[0]!;
    return existsSync(folder) ? undefined : slice;
  };
  let scopesHaveOomPolicy: boolean | undefined;
  return {
    name: "systemd",
    version: mounts.version,
    podCgroup(parent, podId) {
      const ociParent = podSlice(parent, podId);
      const path = slicePath(ociParent);
      return { ociParent, path, paths: cgroupFolders(mounts, path) };
    },
    containerCgroupsPath: (parent, podId, containerId) =>
      `${podSlice(parent, podId)}:${scopePrefix}:${containerId}`,
    containerPaths(parent, podId, containerId) {
      const slice = slicePath(podSlice(parent, podId));
      const scope = (prefix: string) =>
        cgroupFolders(mounts, posix.join(slice, `${prefix}-${containerId}.scope`));
      const former = scope(formerPrefix);
      return existsSync(Object.values(former)[0]!) ? former : scope(scopePrefix);
    },
    pathsOf: (cgroupsPath) => cgroupFolders(mounts, scopePath(cgroupsPath)),
    // An OOM kill of one process must not stop the container: its first process decides. A systemd whose scopes lack
    // the property (247 and 249, for example) stops no scope then, and refuses to start a scope that has the property.
    async containerAnnotations(signal): Promise<Record<string, string>> {
      scopesHaveOomPolicy ??= await hasOomPolicy(signal);
      return scopesHaveOomPolicy ? { "org.systemd.property.OOMPolicy": "'continue'" } : {};
    },
    missingPodCgroup,
    async createPodCgroup(parent, podId) {
      if (!isRunning()) throw new CriError("FAILED_PRECONDITION", withoutSystemd);
      return { made: missingPodCgroup(parent, podId) };
    },
    // systemd creates the slice later, with its first scope, and then applies what is set before.
    async limitPod(podId, limits, signal) {
      const set = limitProperties(mounts.version, limits);
      const slice = podSlice("", podId);
      const argv = ["systemctl", "set-property", "--runtime", slice, ...set];
      const result = await run(argv, { signal });
      if (result.exitCode === 0) return;
      const message = `cannot set ${set.join(" ")} of ${slice}: ${failureOutput(result)}`;
      throw new CriError("FAILED_PRECONDITION", message);
    },
    ownPod: (podId) => ({ parent: "", podId, made: podSlice("", podId) }),
    async removePodCgroup({ parent, made }, signal) {
      if (made === undefined) return;
      // A given parent may contain other pods, which would stop with the slice.
      const isShared =
        parent !== "" && processes(cgroupFolders(mounts, slicePath(made))).length > 0;
      if (isShared) return;
      // Without systemd nobody has made the slice; a folder of that name is removed like any cgroup.
      if (isRunning()) await stopSlice(made, signal);
      else await removeCgroup(cgroupFolders(mounts, slicePath(made)), signal);
      if (parent === "") await removeTree(join(properties, `${made}.d`));
    },
  };
}

/** Returns the path of the scope of an OCI cgroupsPath. @throws CriError INVALID_ARGUMENT. */
function scopePath(cgroupsPath: string): string {
  const [slice = "", prefix = "", name = "", ...more] = cgroupsPath.split(":");
  if (![slice, prefix, name].every(isUnitPart) || more.length > 0) {
    const text = `cgroups path ${quoted(cgroupsPath)} is not SLICE:PREFIX:NAME`;
    throw new CriError("INVALID_ARGUMENT", text);
  }
  return posix.join(slicePath(checkedSlice(slice)), `${prefix}-${name}.scope`);
}

function isUnitPart(text: string): boolean {
  return /^[\w.\\@-]+$/.test(text);
}

/**
 * Returns the last element of the kubelet's path, which is the slice's whole name.
 * @throws CriError INVALID_ARGUMENT when it is not a valid slice name.
 */
function checkedSlice(parent: string): string {
  const name = posix.basename(parent);
  const stem = name.endsWith(".slice") ? name.slice(0, -".slice".length) : "";
  if (!/^[A-Za-z0-9:_.\\]+(-[A-Za-z0-9:_.\\]+)*$/.test(stem) || name.length > 255) {
    throw new CriError(
      "INVALID_ARGUMENT",
      `cgroup parent "${parent}": the systemd cgroup driver needs the name of a slice (like kubepods-burstable.slice); for a path such as /kubepods/pod1 set systemd-cgroup to false, and the kubelet's cgroupDriver to cgroupfs`,
    );
  }
  return name;
}

/** Returns the path of a slice: a-b-c.slice is at /a.slice/a-b.slice/a-b-c.slice. */
function slicePath(slice: string): string {
  const parts = slice.slice(0, -".slice".length).split("-");
  return parts.reduce(
    (path, _part, index) => `${path}/${parts.slice(0, index + 1).join("-")}.slice`,
    "",
  );
}

async function hasOomPolicy(signal: AbortSignal): Promise<boolean> {
  const result = await run(["systemctl", "show", "--property=OOMPolicy", "init.scope"], {
    signal: AbortSignal.any([signal, AbortSignal.timeout(askMs)]),
  });
  if (result.exitCode === 0) return result.stdout.includes("OOMPolicy=");
  const message = `cannot ask systemd for the properties of scopes: ${failureOutput(result)}`;
  throw new CriError("UNAVAILABLE", message);
}

/** A slice stays active when its last scope ends. */
async function stopSlice(slice: string, signal: AbortSignal): Promise<void> {
  const result = await run(["systemctl", "stop", "--quiet", slice], { signal });
  // 5: no such unit, because no container ever ran in the slice.
  if (result.exitCode !== 0 && result.exitCode !== 5) {
    throw new CriError("INTERNAL", `cannot stop ${slice}: ${failureOutput(result)}`);
  }
}
