// The time since boot: it is not set, goes on in standby, and means the same to every process of a boot.
import { readFileSync } from "node:fs";

/** In milliseconds, to the hundredth of a second (proc(5), /proc/uptime). */
export function uptimeMs(): number {
  return Number(readFileSync("/proc/uptime", "utf8").split(" ")[0]) * 1000;
}
