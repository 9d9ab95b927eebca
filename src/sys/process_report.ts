// Describes this process for a dump: memory, heap, threads, open descriptors.
import { readdirSync, readlinkSync } from "node:fs";
import process from "node:process";
import { setImmediate as nextTurn } from "node:timers/promises";
import { readKernelFile } from "./file.ts";

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
  const status = readKernelFile("/proc/self/status") ?? "";
  const rollup = readKernelFile("/proc/self/smaps_rollup") ?? "";
  return {
    pid: process.pid,
    uptimeSeconds: Math.round(process.uptime()),
    threads: figure(status, "Threads"),
    memory: {
      residentBytes: figure(status, "VmRSS") * 1024,
      virtualBytes: figure(status, "VmSize") * 1024,
      privateDirtyBytes: figure(rollup, "Private_Dirty") * 1024,
      heapUsedBytes: heapUsed,
      heapTotalBytes: heapTotal,
      externalBytes: external,
      arrayBufferBytes: arrayBuffers,
    },
    descriptors: await descriptorReport(),
  };
}

/** A number of a file in /proc by its name; 0 without it. */
function figure(text: string, name: string): number {
  return Number(new RegExp(`^${name}:\\s+(\\d+)`, "m").exec(text)?.[1] ?? 0);
}

async function descriptorReport(): Promise<ProcessReport["descriptors"]> {
  const names = readdirSync("/proc/self/fd");
  const kinds: Record<string, number> = {};
  for (const [index, name] of names.slice(0, descriptorsMax).entries()) {
    const kind = kindOf(name);
    kinds[kind] = (kinds[kind] ?? 0) + 1;
    if (index % turnMax === turnMax - 1) await nextTurn();
  }
  const limits = readKernelFile("/proc/self/limits") ?? "";
  const limit = /^Max open files\s+(\d+)/m.exec(limits)?.[1];
  return { open: names.length, limit: limit === undefined ? "unlimited" : Number(limit), kinds };
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
