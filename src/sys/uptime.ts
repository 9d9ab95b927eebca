// Reads the time since boot: a clock that is never set, runs on in standby, and is common to all processes.
import { readFileSync } from "node:fs";

/** A time that can be compared with others of the same boot, also by a later process. */
export type BootTime = { bootId: string; uptimeMs: number };

/** In milliseconds, to the hundredth of a second (proc(5), /proc/uptime). */
export function uptimeMs(): number {
  return Number(readFileSync("/proc/uptime", "utf8").split(" ")[0]) * 1000;
}

export function bootId(): string {
  return readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
}

export function bootTime(): BootTime {
  return { bootId: bootId(), uptimeMs: uptimeMs() };
}
