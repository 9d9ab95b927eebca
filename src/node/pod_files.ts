// Creates the files that a pod's containers share: /etc/hosts, /etc/hostname, /etc/resolv.conf and /dev/shm.
//
//   state/pod-files/POD    a small tmpfs with hosts, hostname and resolv.conf. Containers may write to them: without
//                          a file system of their own they would grow until `state` is full, and with it every pod's
//                          records, exec calls and new pods would fail
//   state/sandboxes/POD    shm, the mount point of /dev/shm; symlinks to the three files, for earlier builds after a
//                          downgrade. Those builds had the files themselves there.
import { chown, mkdir, symlink, writeFile } from "node:fs/promises";
import { lstatSync } from "node:fs";
import { hostname as nodeName } from "node:os";
import { basename, join } from "node:path";
import { errnoOf } from "../base/errors.ts";
import type { PodSandboxConfig } from "../proto/types.ts";
import type { PodFiles } from "../spec/spec_inputs.ts";
import { readTextIfExists } from "../sys/file.ts";
import { MNT_DETACH, mount, MS_NODEV, MS_NOEXEC, MS_NOSUID } from "../sys/mount.ts";
import { removeTree } from "../sys/remove_tree.ts";
import { unmountInThread } from "../sys/unmount_thread.ts";

/** The size that Docker and containerd use. */
const shmBytes = 64 << 20;
const hostShm = "/dev/shm";
/** What containers may add to the three files. Pages count only once they are written. */
const roomBytes = 512 << 10;
/** The folder and three files; newer kernels also count extended attributes, such as SELinux labels, as inodes. */
const inodesMax = 32;
const mountFlags = MS_NOSUID | MS_NODEV | MS_NOEXEC;

/** The folder in `state` that holds the pods' small file systems. */
export const podFilesFolder = "pod-files";

/** hostIpc: the pod uses the node's /dev/shm. */
export type PodPlace = { state: string; id: string; hostIpc: boolean };

/** Folder of a pod's namespaces and /dev/shm, for this boot. */
export function podStateFolder({ state, id }: Pick<PodPlace, "state" | "id">): string {
  return join(state, "sandboxes", id);
}

/** The mount point of a pod's small file system. */
function filesFolder({ state, id }: PodPlace): string {
  return join(state, podFilesFolder, id);
}

/** Returns the paths of a pod's files. */
export function podFiles(pod: PodPlace): PodFiles {
  const folder = podStateFolder(pod);
  const isOfEarlierBuild = lstatSync(join(folder, "hosts"), { throwIfNoEntry: false })?.isFile();
  const files = isOfEarlierBuild ? folder : filesFolder(pod);
  return {
    hosts: join(files, "hosts"),
    hostname: join(files, "hostname"),
    resolvConf: join(files, "resolv.conf"),
    shm: pod.hostIpc ? hostShm : join(folder, "shm"),
  };
}

/** Returns the pod's hostname; a pod without one keeps the node's, with which a new UTS namespace begins. */
export function podHostname(config: PodSandboxConfig): string {
  return config.hostname || nodeName();
}

/** Mounts the pod's file systems and writes the files. owner: the root of the pod's user namespace. */
export async function makePodFiles(
  pod: PodPlace,
  config: PodSandboxConfig,
  owner?: { uid: number; gid: number },
): Promise<void> {
  const files = podFiles(pod);
  const texts = new Map([
    [files.hosts, (await readTextIfExists("/etc/hosts")) ?? "127.0.0.1\tlocalhost\n"],
    [files.hostname, `${podHostname(config)}\n`],
    [files.resolvConf, await resolvConf(config)],
  ]);
  const bytes = [...texts.values()].reduce((sum, text) => sum + Buffer.byteLength(text), roomBytes);
  const folder = filesFolder(pod);
  await mkdir(folder, { recursive: true, mode: 0o700 });
  mount("pod-files", folder, "tmpfs", mountFlags, `mode=700,size=${bytes},nr_inodes=${inodesMax}`);
  const links = podStateFolder(pod);
  await mkdir(links, { recursive: true, mode: 0o700 });
  for (const [path, text] of texts) {
    await writeFile(path, text, { mode: 0o644 });
    if (owner !== undefined) await chown(path, owner.uid, owner.gid);
    const name = basename(path);
    await symlink(join("..", "..", podFilesFolder, pod.id, name), join(links, name));
  }
  if (files.shm === hostShm) return;
  await mkdir(files.shm, { recursive: true, mode: 0o1777 });
  mount("shm", files.shm, "tmpfs", mountFlags, `mode=1777,size=${shmBytes}`);
}

/** Unmounts the pod's file systems. The symlinks go with the folder of its namespaces. Idempotent. */
export async function removePodFiles(pod: PodPlace): Promise<void> {
  const { shm } = podFiles(pod);
  if (shm !== hostShm) await detach(shm);
  const folder = filesFolder(pod);
  await detach(folder);
  await removeTree(folder);
}

async function detach(point: string): Promise<void> {
  try {
    await unmountInThread(point, { flags: MNT_DETACH, kind: "memory" });
  } catch (error) {
    const errno = errnoOf(error);
    if (errno !== "EINVAL" && errno !== "ENOENT") throw error; // EINVAL: not mounted
  }
}

/**
 * Renders the pod's DNS settings; without any, copies the node's. Empty settings are settings: a kubelet whose
 * `resolvConf` is an empty file sends them, and its pods must not resolve names by the node's servers.
 */
export async function resolvConf({ dns_config }: PodSandboxConfig): Promise<string> {
  if (!dns_config) return (await readTextIfExists("/etc/resolv.conf")) ?? "";
  const { servers = [], searches = [], options = [] } = dns_config;
  const lines = servers!.map((server) => `nameserver ${server}\n`);
  if (searches!.length > 0) lines.unshift(`search ${searches!.join(" ")}\n`);
  if (options!.length > 0) lines.push(`options ${options!.join(" ")}\n`);
  return lines.join("");
}
