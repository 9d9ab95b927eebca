// Watches, signals and pins a container's init. A pin is its pidfd, mounted on a file of the state folder:
// with it the kernel keeps the exit code for a later monitor, whichever process reaps the init.
//
// Decision: an exit code is looked up in this order.
//   1. A child of this monitor, also after an upgrade in place, which keeps the children: waitid, which leaves the init
//      a zombie until its exit is recorded.
//   2. A zombie that the daemon, a subreaper, keeps after a monitor was killed: /proc/PID/stat.
//   3. Reaped by another process, most likely by the node's init after daemon and monitor were both killed:
//      PIDFD_INFO_EXIT of the pinned pidfd (Linux 6.15 and a libc with pidfd_open, open_tree and
//      move_mount: glibc 2.36).
// Otherwise the code is 255 and not known: on an older kernel (Debian 12 has 6.1) the container ended while
// neither daemon nor monitor ran, or after it had become a child of the node's init. The time of an exit is
// when it was detected: the kernel keeps none.
import { constants, fstatSync, statSync, writeFileSync } from "node:fs";
import { errnoOf } from "../base/errors.ts";
import { processes, type CgroupPaths } from "../node/cgroup.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { MNT_DETACH, mountDescriptor, unmount } from "../sys/mount.ts";
import { processState, startTime } from "../sys/process.ts";
import { exitOfPidfd, openPidfd, peekExit } from "../sys/wait.ts";
import { removeTreeNow } from "../sys/remove_tree.ts";

/** Pins an init where the kernel and libc can; without a pin its exit code may stay unknown. */
export function pin(pid: number, path: string): void {
  using pidfd = openPidfd(pid);
  if (pidfd === undefined) return;
  try {
    unpin(path); // a leftover of the same name
    writeFileSync(path, "", { mode: 0o600 });
    mountDescriptor(pidfd, path);
  } catch {
    removeTreeNow(path);
  }
}

/** problem: why the code is not the program's own. */
export type End = { exitCode: number; known: boolean; problem?: string };

/** Returns how an init has ended, undefined while it runs. Does not reap it: its exit is not recorded yet. */
export function endOf(init: { pid: number; pidStartTime: string }, path: string): End | undefined {
  try {
    // Without a start time the pid belongs to another process.
    if (init.pidStartTime !== "") {
      const status = peekExit(init.pid);
      return status && { exitCode: status.exitCode, known: true };
    }
  } catch (error) {
    if (errnoOf(error) !== "ECHILD") throw error;
  }
  // It is a child of an earlier monitor: the daemon has adopted it, and reaps it after this monitor has announced its
  // exit.
  const state = processState(init.pid, init.pidStartTime);
  if (state === "running") return undefined;
  const exitCode = state === "gone" ? pinnedExit(path) : state.exitCode;
  return { exitCode: exitCode ?? 255, known: exitCode !== undefined };
}

/**
 * Returns the start time of a container's init; "" when the pid belongs to another process or to none. An
 * init is the process that was pinned, or one in the container's cgroup.
 */
export function startTimeOfInit(pid: number, path: string, cgroup: CgroupPaths): string {
  const isInit = isPin(path, pid) || processes(cgroup).includes(pid);
  return (isInit ? startTime(pid) : undefined) ?? "";
}

/** Sends a signal to an init; false when it has ended. */
export function signalInit(init: { pid: number; pidStartTime: string }, signal: number): boolean {
  // A process that is no child of this one may have been reaped and its pid reused.
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
    const running = fstatSync(pidfd.fd, { bigint: true });
    const pinned = statSync(path, { bigint: true });
    return running.dev === pinned.dev && running.ino === pinned.ino;
  } catch {
    return false;
  }
}

/** Returns the exit code of a pinned process that was reaped; undefined when it cannot be known. */
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
  removeTreeNow(path);
}
