// What every container of a pod sees beside its image: /etc/hosts, /etc/hostname, /etc/resolv.conf
// and one /dev/shm.
import { chown, mkdir, writeFile } from "node:fs/promises";
import { hostname as nodeName } from "node:os";
import { join } from "node:path";
import { errnoOf } from "../base/errors.ts";
import type { PodSandboxConfig } from "../proto/types.ts";
import type { PodFiles } from "../spec/spec_inputs.ts";
import { readTextIfExists } from "../sys/file.ts";
import { MNT_DETACH, mount, MS_NODEV, MS_NOEXEC, MS_NOSUID, unmount } from "../sys/mount.ts";

/** Docker's and containerd's size of /dev/shm. */
const shmBytes = 64 << 20;
const hostShm = "/dev/shm";

/** Where a pod's files lie; hostIpc: it shares the node's /dev/shm. */
export function podFiles(folder: string, hostIpc: boolean): PodFiles {
  return {
    hosts: join(folder, "hosts"),
    hostname: join(folder, "hostname"),
    resolvConf: join(folder, "resolv.conf"),
    shm: hostIpc ? hostShm : join(folder, "shm"),
  };
}

/** The hostname that the pod's containers see: its own, else the node's in the node's network. */
export function podHostname(config: PodSandboxConfig, hostNetwork: boolean): string {
  if (config.hostname) return config.hostname;
  return hostNetwork ? nodeName() : "";
}

/** Writes the files and mounts the shm. owner: the root of the pod's own user namespace. */
export async function makePodFiles(
  files: PodFiles,
  config: PodSandboxConfig,
  { hostNetwork, owner }: { hostNetwork: boolean; owner?: { uid: number; gid: number } },
): Promise<void> {
  const hosts = (await readTextIfExists("/etc/hosts")) ?? "127.0.0.1\tlocalhost\n";
  await writeFile(files.hosts, hosts, { mode: 0o644 });
  await writeFile(files.hostname, `${podHostname(config, hostNetwork)}\n`, { mode: 0o644 });
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

/** Unmounts the shm; again and again if need be. */
export function removePodFiles(files: PodFiles): void {
  if (files.shm === hostShm) return;
  try {
    unmount(files.shm, MNT_DETACH);
  } catch (error) {
    const errno = errnoOf(error);
    if (errno !== "EINVAL" && errno !== "ENOENT") throw error; // not mounted, or never made
  }
}

/** The pod's own DNS settings; without any, the node's. */
async function resolvConf(config: PodSandboxConfig): Promise<string> {
  const { servers = [], searches = [], options = [] } = config.dns_config ?? {};
  if (servers!.length + searches!.length + options!.length === 0) {
    return (await readTextIfExists("/etc/resolv.conf")) ?? "";
  }
  const lines = servers!.map((server) => `nameserver ${server}\n`);
  if (searches!.length > 0) lines.unshift(`search ${searches!.join(" ")}\n`);
  if (options!.length > 0) lines.push(`options ${options!.join(" ")}\n`);
  return lines.join("");
}
