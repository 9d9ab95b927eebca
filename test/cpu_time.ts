// Measures processor time: that of processes, and that of a program that does nothing, as a yardstick.
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { median } from "./median.ts";

/** Returns the CPU time that processes have used. */
export function cpuMs(pids: number[]): number {
  return pids.reduce((sum, pid) => {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    const [user, system] = fields.slice(11, 13);
    return sum + (Number(user) + Number(system)) * 10;
  }, 0);
}

/** Returns the median time of a program that does nothing, in ms. */
export function yardstick(): number {
  const times = Array.from({ length: 21 }, () => {
    const start = performance.now();
    spawnSync("true");
    return performance.now() - start;
  });
  return median(times);
}
