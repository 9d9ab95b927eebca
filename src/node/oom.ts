// The kernel's count of OOM kills in a container's memory cgroup, kept open: the count is read after
// the container's exit and before the runtime deletes the cgroup.
import { readFileSync } from "node:fs";
import { join } from "node:path";

/** Where a process's memory is counted: the file and the key of its oom_kill counter. */
export function oomCounterFile(pid: number): string | undefined {
  const lines = readFileSync(`/proc/${pid}/cgroup`, "utf8").trim().split("\n");
  for (const line of lines) {
    const [, controllers, path] = /^\d+:([^:]*):(.*)$/.exec(line) ?? [];
    if (controllers?.split(",").includes("memory") === true) {
      return join("/sys/fs/cgroup/memory", path!, "memory.oom_control"); // cgroup v1
    }
  }
  const unified = lines.find((line) => line.startsWith("0::"))?.slice(3);
  return unified === undefined ? undefined : join("/sys/fs/cgroup", unified, "memory.events");
}

/** Kills so far; undefined when the cgroup is gone or the kernel does not count (v1 before 4.13). */
export function oomKills(file: string): number | undefined {
  try {
    const match = /^oom_kill (\d+)$/m.exec(readFileSync(file, "utf8"));
    return match === null ? undefined : Number(match[1]);
  } catch {
    return undefined;
  }
}
