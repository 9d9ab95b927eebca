// What the processes of a container have open.
import { readdirSync, readlinkSync } from "node:fs";
import { Slices } from "../base/slices.ts";
import { readKernelFile } from "../sys/file.ts";

export type OpenFiles = { files: bigint; sockets: bigint };

/** Open descriptors of all these processes, and how many of them are sockets. */
export async function countOpenFiles(pids: number[]): Promise<OpenFiles> {
  const slices = new Slices();
  let [files, sockets] = [0n, 0n];
  for (const pid of pids) {
    const folder = `/proc/${pid}/fd`;
    for (const fd of attempt(() => readdirSync(folder)) ?? []) {
      files++;
      if (attempt(() => readlinkSync(`${folder}/${fd}`))?.startsWith("socket:")) sockets++;
      await slices.pause();
    }
  }
  return { files, sockets };
}

/** A process or a descriptor may go at any moment. */
function attempt<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch {
    return undefined;
  }
}

/** The soft limit of open files (proc(5), /proc/PID/limits); undefined: none, or no such process. */
export function openFilesMax(pid: number): bigint | undefined {
  const limits = readKernelFile(`/proc/${pid}/limits`) ?? "";
  const soft = /^Max open files\s+(\d+)\s/m.exec(limits)?.[1];
  return soft === undefined ? undefined : BigInt(soft);
}
