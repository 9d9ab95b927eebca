// Creates the files that a pod's containers share: /etc/hosts, /etc/hostname, /etc/resolv.conf and /dev/shm.
import { chown, mkdir, writeFile } from "node:fs/promises";
import { hostname as nodeName } from "node:os";
import { join } from "node:path";
import { errnoOf } from "../base/errors.ts";
import type { PodSandboxConfig } from "../proto/types.ts";
import type { PodFiles } from "../spec/spec_inputs.ts";
import { readTextIfExists } from "../sys/file.ts";
import { MNT_DETACH, mount, MS_NODEV, MS_NOEXEC, MS_NOSUID, unmount } from "../sys/mount.ts";

/** The size that Docker and containerd use. */
const shmBytes = 64 << 20;
const hostShm = "/dev/shm";

/** Returns the paths of a pod's files; hostIpc: the pod uses the node's /dev/shm. */
export function podFiles(folder: string, hostIpc: boolean): PodFiles {
  return {
    hosts: join(folder, "hosts"),
    hostname: join(folder, "hostname"),
    resolvConf: join(folder, "resolv.conf"),
    shm: hostIpc ? hostShm : join(folder, "shm"),
  };
}

/** Returns the pod's hostname; a pod without one keeps the node's, with which a new UTS namespace begins. */
export function podHostname(config: PodSandboxConfig): string {
  return config.hostname || nodeName();
}

/** Writes the files and mounts the shm. owner: the root of the pod's user namespace. */
export async function makePodFiles(
  files: PodFiles,
  config: PodSandboxConfig,
  owner?: { uid: number; gid: number },
): Promise<void> {
  const hosts = (await readTextIfExists("/etc/hosts")) ?? "127.0.0.1\tlocalhost\n";
  await writeFile(files.hosts, hosts, { mode: 0o644 });
  await writeFile(files.hostname, `${podHostname(config)}\n`, { mode: 0o644 });
  await writeFile(files.resolvConf, await resolvConf(config), { mode: 0o644 });
  if (owner !== undefined) {
    for (const file of [files.hosts, files.hostname, files.resolvConf]) {
      await chown(file, owner.uid, owner.gid);
    }
  }
  if (files.shm === hostShm) return;
  await mkdir(files.shm, { recursive: true, mode: 0o1777 });
  mount("shm", files.shm, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, `mode=1777,size=${shmBytes}`);
}

/** Unmounts the shm. Idempotent. */
export function removePodFiles(files: PodFiles): void {
  if (files.shm === hostShm) return;
  try {
    unmount(files.shm, MNT_DETACH);
  } catch (error) {
    const errno = errnoOf(error);
    if (errno !== "EINVAL" && errno !== "ENOENT") throw error; // EINVAL: not mounted
  }
}

/**
 * Renders the pod's DNS settings; without any, copies the node's. Empty settings are settings: a kubelet whose
 * `resolvConf` is an empty file sends them, and its pods must not resolve names by the node's servers.
 */
async function resolvConf({ dns_config }: PodSandboxConfig): Promise<string> {
  if (!dns_config) return (await readTextIfExists("/etc/resolv.conf")) ?? "";
  const { servers = [], searches = [], options = [] } = dns_config;
  const lines = servers!.map((server) => `nameserver ${server}\n`);
  if (searches!.length > 0) lines.unshift(`search ${searches!.join(" ")}\n`);
  if (options!.length > 0) lines.push(`options ${options!.join(" ")}\n`);
  return lines.join("");
}
