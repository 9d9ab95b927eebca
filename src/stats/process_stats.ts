// What the processes of a container have open.
import { readlinkSync } from "node:fs";
import { readdir, stat } from "node:fs/promises";
import { Slices } from "../base/time_slices.ts";
import { readKernelFile } from "../sys/file.ts";

export type OpenFiles = { files: bigint; sockets: bigint };

/** Each costs a call to the kernel, and a container may open millions. */
const filesMax = 20_000;

/** Open descriptors of all these processes, and how many are sockets; undefined: too many to count. */
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

/** The paths of a process's descriptors, none once it has ended; undefined: too many. */
async function openFiles(folder: string): Promise<string[] | undefined> {
  try {
    // Since Linux 6.2 it is the number of descriptors, before that 0.
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

/** The soft limit of open files (proc(5), /proc/PID/limits); undefined: none, or no such process. */
export function openFilesMax(pid: number): bigint | undefined {
  const limits = readKernelFile(`/proc/${pid}/limits`) ?? "";
  const soft = /^Max open files\s+(\d+)\s/m.exec(limits)?.[1];
  return soft === undefined ? undefined : BigInt(soft);
}
