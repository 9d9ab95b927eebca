// Reads the facts of this machine that the configuration depends on; tests pass fakes.
import { accessSync, constants, existsSync, readFileSync } from "node:fs";
import { delimiter, join } from "node:path";

export type HostInfo = {
  /** Returns a group's id by name (/etc/group) or number. */
  groupId(name: string): number | undefined;
  exists(path: string): boolean;
  isExecutable(path: string): boolean;
  /** Returns the absolute path of an installed program. */
  findExecutable(name: string): string | undefined;
  /** True if systemd is this host's init. */
  systemdRuns(): boolean;
};

export const hostFacts: HostInfo = {
  groupId,
  exists: existsSync,
  isExecutable,
  findExecutable,
  systemdRuns,
};

// Not $PATH: Debian keeps runc in /usr/sbin, which the PATH of a service may not contain.
export const programFolders = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"];
/** programFolders, and those in which Debian has iptables and iproute2. */
export const systemFolders = [...programFolders, "/sbin", "/bin"];

export function groupId(name: string): number | undefined {
  if (/^\d{1,9}$/.test(name)) return Number(name);
  for (const line of readFileSync("/etc/group", "utf8").split("\n")) {
    const [group, , id] = line.split(":");
    if (group === name && id !== undefined) return Number(id);
  }
  return undefined;
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

function findExecutable(name: string): string | undefined {
  return programFolders.map((folder) => `${folder}/${name}`).find(isExecutable);
}

/** Tests like sd_booted(3). */
/** True if systemd is the init of this host (sd_booted(3)). */
export function systemdRuns(): boolean {
  return existsSync("/run/systemd/system");
}

/** Returns true for a program that is called by its name alone, which is searched in the folders of `path`. */
export function isInPath(name: string, path = process.env["PATH"] ?? ""): boolean {
  const folders = path.split(delimiter).filter((folder) => folder !== "");
  return folders.some((folder) => isExecutable(join(folder, name)));
}
