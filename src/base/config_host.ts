// What the configuration must know of this machine; tests pass their own.
import { accessSync, constants, existsSync, readFileSync } from "node:fs";

export type HostFacts = {
  /** The group's id by name or number, as /etc/group has it. */
  groupId(name: string): number | undefined;
  isExecutable(path: string): boolean;
  /** The absolute path of an installed program. */
  findExecutable(name: string): string | undefined;
  /** Whether systemd is what this host runs under. */
  systemdRuns(): boolean;
};

export const hostFacts: HostFacts = { groupId, isExecutable, findExecutable, systemdRuns };

// Debian keeps runc in /usr/sbin, which a service's PATH may lack: so not $PATH.
const programFolders = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"];

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

/** sd_booted(3). */
function systemdRuns(): boolean {
  return existsSync("/run/systemd/system");
}
