// Finds the limit of open files (RLIMIT_NOFILE) that containers would inherit if the engine had left it alone.
//
// Decision: Bun raises its own soft limit to the hard one before any of our code runs, and children inherit that. A
// program that closes all possible descriptors, or sizes a table by the limit, then takes seconds, and select(2)
// breaks above 1024. The kernel does not keep the old value. It is the parent's where that has the same hard limit, as
// a shell has; else the usual 1024 of the kernel and of systemd.
import process from "node:process";
import { processLimit, type ProcessLimit } from "./process.ts";

/** Bun raises the soft limit to the hard one, but not above this. */
const raisedMax = 1 << 20;
/** INR_OPEN_CUR of the kernel, and systemd's DefaultLimitNOFILE. */
const usualSoft = 1_024;

/** Returns the soft limit before the engine raised it. own, parent: of this process and of its parent, now. */
export function softBeforeEngine(own: ProcessLimit, parent: ProcessLimit | undefined): number {
  const isRaised = own.soft === Math.min(own.hard, raisedMax);
  if (!isRaised) return own.soft;
  if (parent?.hard === own.hard && parent.soft < own.soft) return parent.soft;
  return Math.min(own.soft, usualSoft);
}

export function ownSoftBeforeEngine(): number {
  const [own, parent] = [process.pid, process.ppid].map((pid) => processLimit(pid, "open files"));
  return own === undefined ? usualSoft : softBeforeEngine(own, parent);
}
