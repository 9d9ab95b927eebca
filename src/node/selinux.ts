// SELinux, where the kernel runs it and daemon.json wants it: the policy's labels of containers, whether
// the kernel knows a label, and the labels of files.
import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import type { HostInfo } from "../spec/spec_inputs.ts";
import { parsePolicy } from "../spec/selinux.ts";
import { readTextBounded } from "../sys/file.ts";
import { failureOutput, run } from "../sys/run.ts";

/** Of one walk through a volume; a kubelet waits two minutes for a container. */
const relabelMs = 100_000;
const policyBytesMax = 1 << 16;

/** No container's own: whoever shares one of these with a container shares what is in it. */
const systemFolders = new Set(
  (
    "/ /bin /boot /dev /etc /etc/passwd /etc/pki /etc/shadow /home /lib /lib64 /media /opt /proc /root " +
    "/run /sbin /srv /sys /tmp /usr /var /var/lib /var/log"
  ).split(" "),
);

/**
 * What containers' labels are made of. root: where the node's /sys, /etc and /usr lie.
 * @throws CriError FAILED_PRECONDITION where labels are wanted and the policy has none for containers.
 */
export function openSelinux(
  wanted: boolean,
  root = "/",
): { selinux?: HostInfo["selinux"]; problem?: string } {
  if (!existsSync(join(root, "sys/fs/selinux/enforce"))) {
    if (!wanted) return {};
    return { problem: "selinux-enabled: this kernel runs without SELinux, so nothing is labelled" };
  }
  if (!wanted) return { selinux: {} };
  for (const path of contextFiles(root)) {
    const policy = parsePolicy(readTextOrNone(path));
    if (policy !== undefined) return { selinux: { policy } };
  }
  throw new CriError(
    "FAILED_PRECONDITION",
    "selinux-enabled: this node's SELinux policy has no labels for containers: install the package container-selinux, or set selinux-enabled to false",
  );
}

/** Where libselinux looks for them (container_contexts(5), lxc_contexts). */
function contextFiles(root: string): string[] {
  const config = readTextOrNone(join(root, "etc/selinux/config"));
  const type = /^\s*SELINUXTYPE\s*=\s*"?([\w.-]+)"?\s*$/m.exec(config)?.[1];
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

/**
 * Whether the loaded policy knows a label (selinuxfs: context).
 * @throws CriError INVALID_ARGUMENT
 */
export function checkLabel(label: string, root = "/"): void {
  try {
    writeFileSync(join(root, "sys/fs/selinux/context"), label);
  } catch (cause) {
    throw new CriError(
      "INVALID_ARGUMENT",
      `selinux_options: the node's SELinux policy does not take ${label}: ${messageOf(cause)}`,
      { cause },
    );
  }
}

/**
 * Gives a label to these files and to all that lies under them; links themselves, and never what they
 * lead to, also while somebody changes the tree. What has the label costs no write; a file system
 * without labels is left as it is. Paths are real ones.
 * @throws CriError INVALID_ARGUMENT for a folder of the system, before anything is labelled;
 * DEADLINE_EXCEEDED.
 */
export async function relabel(
  paths: readonly string[],
  label: string,
  signal: AbortSignal,
): Promise<void> {
  const system = paths.find((path) => systemFolders.has(path));
  if (system !== undefined) {
    const hint = "it is the system's: name a folder of its own";
    throw new CriError("INVALID_ARGUMENT", `selinux_relabel of ${system}: ${hint}`);
  }
  if (paths.length === 0) return;
  const argv = ["chcon", "--recursive", "--no-dereference", "--", label, ...paths];
  const { exitCode, stderr } = await run(argv, {
    signal: AbortSignal.any([signal, AbortSignal.timeout(relabelMs)]),
    env: { PATH: process.env["PATH"] ?? "", LC_ALL: "C" },
  });
  if (exitCode === 0) return;
  const failures = stderr.split("\n").filter((line) => line !== "" && !isHarmless(line));
  if (failures.length === 0) return;
  throw new CriError(
    "INTERNAL",
    `cannot label files with ${label}: ${failureOutput({ stderr: failures[0] })}`,
  );
}

/** Somebody removed it meanwhile, or its file system has no labels, as NFS. */
function isHarmless(line: string): boolean {
  return /: (No such file or directory|Operation not supported)$/.test(line);
}
