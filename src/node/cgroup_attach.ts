// Takes the kernel's lock for moves between cgroups ahead of the runtime, so that the runtime need not wait for it.
//
// Decision: the whole node has one such lock. After a pause the first move waits for an RCU grace period, 5 to 15 ms on
// an idle node (kernel/cgroup/cgroup.c, cgroup_attach_lock; kernel/rcu/sync.c, rcu_sync_enter), and the next moves do
// not. The runtime makes its first move some 10 ms after its start. Writing the runtime's pid into the cgroup that it
// is in already moves nothing, but takes the lock, so that the grace period passes while the runtime starts.
import { constants } from "node:fs";
import { open } from "node:fs/promises";
import { join } from "node:path";
import { readKernelFile } from "../sys/file.ts";
import type { CgroupMounts } from "./cgroup.ts";

export class CgroupAttachLock {
  readonly #version: 1 | 2;
  readonly #hierarchy: string;
  readonly #root: string;
  readonly #ownCgroups: string;
  #taking = false;

  /** ownCgroups: a file in the form of /proc/self/cgroup (cgroups(7)). */
  constructor({ version, roots }: CgroupMounts, ownCgroups = "/proc/self/cgroup") {
    this.#version = version;
    [this.#hierarchy, this.#root] = Object.entries(roots)[0]!;
    this.#ownCgroups = ownCgroups;
  }

  /**
   * Takes the lock in the background. pid: a child that is in this process's cgroup. verb: that of the runtime call
   * which the child runs. Never waits, and never throws: nobody would supervise the child then.
   */
  takeAhead(pid: number, verb: string): void {
    // Under v2 runc starts execs in their cgroup by clone3(2), which this lock would delay.
    const moves = verb === "create" || (verb === "exec" && this.#version === 1);
    if (!moves || this.#taking) return;
    this.#taking = true;
    this.#move(pid)
      .catch(() => {}) // best effort: the runtime's own move reports what is wrong
      .finally(() => (this.#taking = false));
  }

  async #move(pid: number): Promise<void> {
    const cgroup = cgroupIn(this.#hierarchy, readKernelFile(this.#ownCgroups) ?? "");
    if (cgroup !== undefined) await moveTo(join(this.#root, cgroup), pid);
  }
}

/** Returns the path below the hierarchy's root; undefined for one outside of this cgroup namespace. */
function cgroupIn(hierarchy: string, text: string): string | undefined {
  const name = hierarchy === "unified" ? "" : hierarchy;
  for (const line of text.split("\n")) {
    const [, names, path] = /^\d+:([^:]*):(.*)$/.exec(line) ?? [];
    if (names?.split(",").includes(name)) return path!.startsWith("/..") ? undefined : path;
  }
  return undefined;
}

/** Waits in a thread of the engine's pool. */
async function moveTo(folder: string, pid: number): Promise<void> {
  await using file = await open(join(folder, "cgroup.procs"), constants.O_WRONLY);
  await file.write(String(pid));
}
