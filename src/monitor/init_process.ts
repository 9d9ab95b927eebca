// A container's init, pinned: its pidfd, mounted on a file of the state folder. So the kernel keeps how it
// ended, whoever reaps it, for a monitor that comes later.
//
// Decision: how an exit becomes known, in the order in which it is tried.
//   1. The monitor's own child: waitpid. Also after an upgrade in place, which keeps the children.
//   2. A zombie that the daemon, a subreaper, keeps after a monitor was killed: /proc/PID/stat.
//   3. Reaped by somebody else, most likely by init after daemon and monitor were both killed:
//      PIDFD_INFO_EXIT of the pinned pidfd (Linux 6.15 and a libc with pidfd_open, open_tree and
//      move_mount: glibc 2.36). Needs nobody to have been alive at the exit.
// What remains is 255, not known: an older kernel (Debian 12 has 6.1) and an exit while neither daemon
// nor monitor lived, or later but of a container that had lost both and is init's child since.
// The time of an exit is when it was seen: the kernel keeps none.
import { constants, fstatSync, rmSync, statSync, writeFileSync } from "node:fs";
import { errnoOf } from "../base/errors.ts";
import { processes, type CgroupPaths } from "../node/cgroup.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { MNT_DETACH, mountDescriptor, unmount } from "../sys/mount.ts";
import { processState, startTime } from "../sys/process.ts";
import { exitOfPidfd, openPidfd, reap } from "../sys/wait.ts";

/** False where the kernel or libc cannot. */
export function pin(pid: number, path: string): boolean {
  using pidfd = openPidfd(pid);
  if (pidfd === undefined) return false;
  try {
    unpin(path); // what somebody else has put there
    writeFileSync(path, "", { mode: 0o600 });
    mountDescriptor(pidfd, path);
    return true;
  } catch {
    rmSync(path, { recursive: true, force: true });
    return false;
  }
}

export type End = { exitCode: number; known: boolean };

/** How an init has ended; undefined while it runs. It is reaped where it is this process's child. */
export function endOf(init: { pid: number; pidStartTime: string }, path: string): End | undefined {
  try {
    // Without a start time the pid is another process's.
    if (init.pidStartTime !== "") {
      const status = reap(init.pid);
      return status && { exitCode: status.exitCode, known: true };
    }
  } catch (error) {
    if (errnoOf(error) !== "ECHILD") throw error;
  }
  // An earlier monitor's child, which is the daemon's now: that reaps it when we know of its end.
  const state = processState(init.pid, init.pidStartTime);
  if (state === "running") return undefined;
  const exitCode = state === "gone" ? pinnedExit(path) : state.exitCode;
  return { exitCode: exitCode ?? 255, known: exitCode !== undefined };
}

/**
 * The start time of a pid that is said to be a container's init; "": it is another process's, or nobody's. It
 * is the one that was pinned, or it is in the container's cgroup.
 */
export function startTimeOfInit(pid: number, path: string, cgroup: CgroupPaths): string {
  const isInit = isPin(path, pid) || processes(cgroup).includes(pid);
  return (isInit ? startTime(pid) : undefined) ?? "";
}

/** Sends a signal to an init; false when it has ended. */
export function signalInit(init: { pid: number; pidStartTime: string }, signal: number): boolean {
  // What is not this process's child may have been reaped, and its pid be another's by now.
  if (processState(init.pid, init.pidStartTime) === "gone") return false;
  try {
    process.kill(init.pid, signal);
    return true;
  } catch (error) {
    if (errnoOf(error) === "ESRCH") return false;
    throw error;
  }
}

function isPin(path: string, pid: number): boolean {
  using pidfd = openPidfd(pid);
  if (pidfd === undefined) return false;
  try {
    const [running, pinned] = [
      fstatSync(pidfd.fd, { bigint: true }),
      statSync(path, { bigint: true }),
    ];
    return running.dev === pinned.dev && running.ino === pinned.ino;
  } catch {
    return false;
  }
}

/** The exit code of a pinned process that was reaped; undefined when it cannot be known. */
function pinnedExit(path: string): number | undefined {
  try {
    using pidfd = Descriptor.open(path, constants.O_RDONLY);
    return exitOfPidfd(pidfd)?.exitCode;
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return undefined;
    throw error;
  }
}

export function unpin(path: string): void {
  try {
    unmount(path, MNT_DETACH);
  } catch (error) {
    if (!["EINVAL", "ENOENT"].includes(errnoOf(error) ?? "")) throw error; // not mounted
  }
  rmSync(path, { recursive: true, force: true });
}
