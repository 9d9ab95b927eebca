// Measures what daemon and monitor use of the node while a neighbour misbehaves: memory and its peak, the processor time
// of each thread, bytes written, the pipes that they hold, and the files of the daemon's state.
import {
  closeSync,
  existsSync,
  openSync,
  constants,
  readdirSync,
  readFileSync,
  readlinkSync,
  statfsSync,
} from "node:fs";
import { join } from "node:path";
import { check } from "../src/sys/libc.ts";
import type { Daemon } from "./harness.ts";
import { pssKib } from "./leaks.ts";

/** The daemon and its monitor; finding them takes long, so they are found once. */
export type Processes = { daemon: Daemon; pids: number[] };

/** In MiB. */
export type Memory = {
  /** Anonymous pages of daemon and monitor, and what the tmpfs of the state holds. */
  own: number;
  rss: number;
  /** Anonymous pages of the daemon's helpers, which read what registries send, and copy streams. */
  helpers: number;
};

const everyMs = 100;
const mib = 1 << 20;

function textOf(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return ""; // It ended meanwhile.
  }
}

function statusMib(pid: number, name: string): number {
  const found = new RegExp(`^${name}:\\s+(\\d+)`, "m").exec(textOf(`/proc/${pid}/status`));
  return Number(found?.[1] ?? 0) / 1024;
}

/** The children of all threads. */
function childrenOf(pid: number): number[] {
  const folder = `/proc/${pid}/task`;
  const tasks = existsSync(folder) ? readdirSync(folder) : [];
  return tasks.flatMap((tid) =>
    textOf(join(folder, tid, "children"))
      .split(" ")
      .filter(Boolean)
      .map(Number),
  );
}

export function memoryNow({ daemon, pids }: Processes): Memory {
  const sum = (all: number[], name: string) =>
    all.reduce((total, pid) => total + statusMib(pid, name), 0);
  const { blocks, bfree, bsize } = statfsSync(join(daemon.dir, "state"));
  const helpers = childrenOf(daemon.pid).filter((pid) => !pids.includes(pid));
  return {
    own: sum(pids, "RssAnon") + sum(pids, "RssShmem") + ((blocks - bfree) * bsize) / mib,
    rss: sum(pids, "VmRSS"),
    helpers: sum(helpers, "RssAnon"),
  };
}

/** PSS of daemon and monitor in MiB. */
export function pssMib(pids: number[]): number {
  return pids.reduce((sum, pid) => sum + pssKib(pid) / 1024, 0);
}

/** Samples memory until it is disposed of. */
export class MemoryPeaks implements Disposable {
  readonly peak: Memory;
  #timer: NodeJS.Timeout;

  constructor(processes: Processes) {
    this.peak = memoryNow(processes);
    this.#timer = setInterval(() => {
      const now = memoryNow(processes);
      for (const name of ["own", "rss", "helpers"] as const)
        this.peak[name] = Math.max(this.peak[name], now[name]);
    }, everyMs);
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer);
  }
}

/** Processor time of each thread in ms, by "PID/TID NAME". */
export function threadTimes(pids: number[]): Map<string, number> {
  const times = new Map<string, number>();
  for (const pid of pids) {
    const folder = `/proc/${pid}/task`;
    for (const tid of existsSync(folder) ? readdirSync(folder) : []) {
      const stat = textOf(join(folder, tid, "stat"));
      if (stat === "") continue;
      const name = stat.slice(stat.indexOf("(") + 1, stat.lastIndexOf(")"));
      const [user, system] = stat
        .slice(stat.lastIndexOf(")") + 2)
        .split(" ")
        .slice(11, 13);
      times.set(`${pid}/${tid} ${name}`, (Number(user) + Number(system)) * 10);
    }
  }
  return times;
}

/** Bytes that the processes have caused to be written to disks, proc_pid_io(5). */
export function bytesWritten(pids: number[]): number {
  return pids.reduce((sum, pid) => {
    return sum + Number(/^write_bytes: (\d+)$/m.exec(textOf(`/proc/${pid}/io`))?.[1] ?? 0);
  }, 0);
}

/** Returns the capacity of a pipe that a process has open, in bytes. */
export function pipeBytes(pid: number, descriptor: number | string): number {
  const F_GETPIPE_SZ = 1032;
  const fd = openSync(`/proc/${pid}/fd/${descriptor}`, constants.O_RDONLY | constants.O_NONBLOCK);
  try {
    return check("fcntl", "F_GETPIPE_SZ", fd, F_GETPIPE_SZ, 0);
  } finally {
    closeSync(fd);
  }
}

/** Returns the capacity of all pipes and FIFOs that the processes have open, which the kernel charges to root. */
export function pipesHeld(pids: number[]): number {
  const seen = new Map<string, number>();
  for (const pid of pids) {
    const folder = `/proc/${pid}/fd`;
    for (const fd of readdirSync(folder)) {
      try {
        const target = readlinkSync(join(folder, fd));
        if (!target.startsWith("pipe:") && !target.includes("/stdio/")) continue;
        if (!seen.has(target)) seen.set(target, pipeBytes(pid, fd));
      } catch {
        continue; // closed meanwhile, or no pipe
      }
    }
  }
  return [...seen.values()].reduce((sum, bytes) => sum + bytes, 0);
}
