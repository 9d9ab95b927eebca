// Describes this process for a dump: memory, heap, threads, open descriptors.
import { readdirSync, readlinkSync } from "node:fs";
import process from "node:process";
import { setImmediate as nextTurn } from "node:timers/promises";
import { kernelFigure, readKernelFile } from "./file.ts";
import { memoryOf, softLimit } from "./process.ts";

/** Each costs a system call. */
const descriptorsMax = 20_000;
/** Descriptors that are read in one turn of the event loop. */
const turnMax = 500;

export type ProcessReport = {
  pid: number;
  uptimeSeconds: number;
  threads: number;
  memory: Record<string, number>;
  descriptors: {
    open: number;
    limit: number | "unlimited";
    /** How many of each kind: socket, pipe, file, anon_inode:[eventfd] …; of the first 20,000. */
    kinds: Record<string, number>;
  };
};

export async function processReport(): Promise<ProcessReport> {
  const { heapUsed, heapTotal, external, arrayBuffers } = process.memoryUsage();
  const status = readKernelFile("/proc/self/status");
  const rollup = readKernelFile("/proc/self/smaps_rollup");
  const memory = memoryOf(process.pid);
  return {
    pid: process.pid,
    uptimeSeconds: Math.round(process.uptime()),
    threads: kernelFigure(status, "Threads") ?? 0,
    memory: {
      residentBytes: memory?.resident ?? 0,
      virtualBytes: memory?.virtual ?? 0,
      privateDirtyBytes: (kernelFigure(rollup, "Private_Dirty") ?? 0) * 1024,
      heapUsedBytes: heapUsed,
      heapTotalBytes: heapTotal,
      externalBytes: external,
      arrayBufferBytes: arrayBuffers,
    },
    descriptors: await descriptorReport(),
  };
}

async function descriptorReport(): Promise<ProcessReport["descriptors"]> {
  const names = readdirSync("/proc/self/fd");
  const kinds: Record<string, number> = {};
  for (const [index, name] of names.slice(0, descriptorsMax).entries()) {
    const kind = kindOf(name);
    kinds[kind] = (kinds[kind] ?? 0) + 1;
    if (index % turnMax === turnMax - 1) await nextTurn();
  }
  return { open: names.length, limit: softLimit(process.pid, "open files") ?? "unlimited", kinds };
}

function kindOf(descriptor: string): string {
  try {
    const target = readlinkSync(`/proc/self/fd/${descriptor}`);
    if (target.startsWith("/")) return target.startsWith("/dev/") ? target : "file";
    return target.startsWith("anon_inode:") ? target : target.split(":", 1)[0]!;
  } catch {
    return "closed"; // meanwhile
  }
}
