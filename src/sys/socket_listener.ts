// Finds the process that listens on a unix socket. SO_PEERCRED would name the one that bound it, which may have ended
// after it passed the socket on.
import { readdirSync, readlinkSync } from "node:fs";
import { readKernelFile } from "./file.ts";

/** Of /proc/net/unix, in hexadecimal: the socket listens. */
const acceptsFlag = 0x10000;

/** Returns the one of these processes that holds the listening socket bound to an absolute path, if any. */
export function listenerOf(path: string, pids: readonly number[]): number | undefined {
  const inodes = listeningInodes(readKernelFile("/proc/net/unix") ?? "", path);
  if (inodes.size === 0) return undefined;
  return pids.find((pid) => linksOf(pid).some((link) => inodes.has(link)));
}

/** Returns the listening sockets of /proc/net/unix (proc(5)) with this path, as descriptors' links name them. */
export function listeningInodes(table: string, path: string): Set<string> {
  const found = new Set<string>();
  for (const line of table.split("\n")) {
    // Num RefCount Protocol Flags Type St Inode Path; a path may contain blanks.
    const [, , , flags = "", , , inode, ...name] = line.trim().split(/ +/);
    const accepts = (Number.parseInt(flags, 16) & acceptsFlag) !== 0;
    if (accepts && line.endsWith(` ${path}`) && name.length > 0) found.add(`socket:[${inode}]`);
  }
  return found;
}

/** Returns what a process's descriptors refer to; none once it has ended. */
function linksOf(pid: number): string[] {
  const folder = `/proc/${pid}/fd`;
  try {
    return readdirSync(folder).flatMap((fd) => {
      try {
        return readlinkSync(`${folder}/${fd}`);
      } catch {
        return []; // closed meanwhile
      }
    });
  } catch {
    return [];
  }
}
