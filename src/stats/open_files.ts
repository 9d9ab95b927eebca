// Counts the open descriptors and sockets of a container's processes.
import { readlinkSync } from "node:fs";
import { readdir, stat } from "node:fs/promises";
import { Slices } from "../base/time_slices.ts";

export type OpenFiles = { files: bigint; sockets: bigint };

/** Each costs a system call, and a container may open millions. */
const filesMax = 20_000;

/** Counts the open descriptors of all these processes; undefined: too many to count. */
export async function countOpenFiles(pids: number[]): Promise<OpenFiles | undefined> {
  const slices = new Slices();
  let [files, sockets] = [0, 0];
  for (const pid of pids) {
    const fds = await openFiles(`/proc/${pid}/fd`);
    if (fds === undefined) return undefined;
    files += fds.length;
    if (files > filesMax) return undefined;
    for (const fd of fds) {
      if (isSocket(fd)) sockets++;
      await slices.pause();
    }
  }
  return { files: BigInt(files), sockets: BigInt(sockets) };
}

/** Lists the paths of a process's descriptors, none once it has ended; undefined: too many. */
async function openFiles(folder: string): Promise<string[] | undefined> {
  try {
    // The number of descriptors since Linux 6.2, 0 before that.
    const { size } = await stat(folder);
    if (size > filesMax) return undefined;
    return (await readdir(folder)).map((name) => `${folder}/${name}`);
  } catch {
    return [];
  }
}

function isSocket(path: string): boolean {
  try {
    return readlinkSync(path).startsWith("socket:");
  } catch {
    return false; // closed meanwhile
  }
}
