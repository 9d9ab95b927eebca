// Bounds the monitor's own log file: it lies on the state folder's tmpfs, in memory. Monitors append to it
// (O_APPEND), each after the one before.
import { appendFileSync, constants, readSync, statSync, truncateSync } from "node:fs";
import { join } from "node:path";
import { Descriptor } from "../sys/descriptor.ts";

const bytesMax = 1 << 20;
/** Bytes at the end that are kept when the file is cut. */
const bytesKept = 256 << 10;

export function monitorLogFile(state: string): string {
  return join(state, "monitor.log");
}

/** Cuts the oldest lines off a file that is too long; a line written in that moment may be lost. */
export function trimMonitorLogFile(state: string): void {
  const path = monitorLogFile(state);
  const size = statSync(path, { throwIfNoEntry: false })?.size ?? 0;
  if (size <= bytesMax) return;
  const tail = Buffer.alloc(bytesKept);
  {
    using log = Descriptor.open(path, constants.O_RDONLY);
    readSync(log.fd, tail, 0, bytesKept, size - bytesKept);
  }
  truncateSync(path, 0);
  appendFileSync(path, tail.subarray(tail.indexOf(10) + 1));
}
