// Reads the SELinux policy's labels for containers, validates labels and relabels volumes' files.
import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import type { HostInfo } from "../spec/spec_inputs.ts";
import { parsePolicy } from "../spec/selinux.ts";
import { readTextBounded } from "../sys/file.ts";
import { failureOutput, run } from "../sys/run.ts";

/** Limit for one volume; a kubelet waits two minutes for a container. */
const relabelMs = 100_000;
const policyBytesMax = 1 << 16;

/** Paths that relabel() refuses: processes of the host need their labels. */
const systemPaths = new Set(
  (
    "/ /bin /boot /dev /etc /etc/passwd /etc/pki /etc/shadow /home /lib /lib64 /media /opt /proc /root " +
    "/run /sbin /srv /sys /tmp /usr /var /var/lib /var/log"
  ).split(" "),
);

/**
 * Reads the policy from which containers' labels are built. enabled: the key selinux-enabled.
 * @throws CriError FAILED_PRECONDITION when SELinux is enabled but its policy has no labels for containers.
 */
export function openSelinux(
  enabled: boolean,
  root = "/",
): { selinux?: HostInfo["selinux"]; problem?: string } {
  if (!existsSync(join(root, "sys/fs/selinux/enforce"))) {
    if (!enabled) return {};
    return { problem: "selinux-enabled: SELinux is off in this kernel, so nothing is labelled" };
  }
  if (!enabled) return { selinux: {} };
  for (const path of contextFiles(root)) {
    const policy = parsePolicy(readTextOrNone(path));
    if (policy !== undefined) return { selinux: { policy } };
  }
  throw new CriError(
    "FAILED_PRECONDITION",
    "selinux-enabled: this node's SELinux policy has no labels for containers: install the package container-selinux, or set selinux-enabled to false",
  );
}

/** Returns the files that libselinux reads (container_contexts(5), lxc_contexts). */
function contextFiles(root: string): string[] {
  const config = readTextOrNone(join(root, "etc/selinux/config"));
  const type = /^[ \t]*SELINUXTYPE[ \t]*=[ \t]*"?([\w.-]+)"?[ \t]*$/m.exec(config)?.[1];
  const ofType = type === undefined ? [] : [`etc/selinux/${type}/contexts/lxc_contexts`];
  return ["usr/share/containers/selinux/contexts", ...ofType].map((path) => join(root, path));
}

function readTextOrNone(path: string): string {
  try {
    return readTextBounded(path, policyBytesMax);
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return "";
    throw error;
  }
}

/** @throws CriError INVALID_ARGUMENT when the loaded policy rejects the label (selinuxfs: context). */
export function checkLabel(label: string, root = "/"): void {
  try {
    writeFileSync(join(root, "sys/fs/selinux/context"), label);
  } catch (cause) {
    const problem = `the node's SELinux policy does not accept ${label}: ${messageOf(cause)}`;
    throw new CriError("INVALID_ARGUMENT", `selinux_options: ${problem}`, { cause });
  }
}

/**
 * Labels these files recursively. Labels links themselves, never their targets, even while the tree changes;
 * skips files that have the label and file systems without labels. paths: real paths, for the comparison with
 * systemPaths. @throws CriError INVALID_ARGUMENT for one of them, before any is labelled; DEADLINE_EXCEEDED.
 */
export async function relabel(
  paths: readonly string[],
  label: string,
  signal: AbortSignal,
): Promise<void> {
  const system = paths.find((path) => systemPaths.has(path));
  if (system !== undefined) {
    const hint = "it belongs to the system: use a directory of its own";
    throw new CriError("INVALID_ARGUMENT", `selinux_relabel of ${system}: ${hint}`);
  }
  if (paths.length === 0) return;
  const argv = ["chcon", "--recursive", "--no-dereference", "--", label, ...paths];
  const { exitCode, stderr } = await run(argv, {
    signal: AbortSignal.any([signal, AbortSignal.timeout(relabelMs)]),
    env: { PATH: process.env["PATH"] ?? "", LC_ALL: "C" },
  });
  if (exitCode === 0) return;
  const failure = stderr.split("\n").find((line) => line !== "" && !isHarmless(line));
  if (failure === undefined) return;
  const reason = failureOutput({ stderr: failure });
  throw new CriError("INTERNAL", `cannot label files with ${label}: ${reason}`);
}

/** The file was removed meanwhile, or its file system (NFS) has no labels. */
function isHarmless(line: string): boolean {
  return /: (No such file or directory|Operation not supported)$/.test(line);
}
