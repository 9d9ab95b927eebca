// What the monitor itself has to tell: a file on the state folder's tmpfs, which is memory, and so has a
// bound. It is written with O_APPEND, by a monitor and by the one after it.
import { appendFileSync, constants, readSync, statSync, truncateSync } from "node:fs";
import { join } from "node:path";
import { Descriptor } from "../sys/descriptor.ts";

const bytesMax = 1 << 20;
/** What stays, of the newest, when there is more. */
const bytesKept = 256 << 10;

export function monitorLogFile(state: string): string {
  return join(state, "monitor.log");
}

/** Cuts the oldest off when it has become too long; a line that comes in that moment may go with it. */
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
