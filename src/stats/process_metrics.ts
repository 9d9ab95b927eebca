// Reads the daemon's own process for the metrics process_*.
import { readdirSync } from "node:fs";
import process from "node:process";
import { nowMs } from "../base/clock.ts";
import { memoryOf, softLimit } from "../sys/process.ts";
import { reading } from "./own_metrics.ts";
import type { Family } from "./prometheus.ts";

const startedS = Math.floor(nowMs() / 1000 - process.uptime());

export function processFamilies(): Family[] {
  const { user, system } = process.cpuUsage();
  const memory = memoryOf(process.pid);
  return [
    reading("process_cpu_seconds_total", (user + system) / 1e6),
    reading("process_resident_memory_bytes", memory?.resident),
    reading("process_virtual_memory_bytes", memory?.virtual),
    reading("process_open_fds", readdirSync("/proc/self/fd").length),
    reading("process_max_fds", softLimit(process.pid, "open files")),
    reading("process_start_time_seconds", startedS),
  ];
}
