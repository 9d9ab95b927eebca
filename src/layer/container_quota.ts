// Limits each container's writable layer with project quotas of the graph folder's file system.
// Decision: the file system is queried for used project ids each time. There is no record that could
// contradict it, and other programs' ids are left alone.
import { existsSync, lstatSync, mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { deviceNumbers } from "../sys/path.ts";
import {
  limitsProjects,
  projectOf,
  projectQuota,
  setProject,
  setProjectLimit,
} from "../sys/quota.ts";
import { removeTreeNow } from "../sys/remove_tree.ts";

/** This daemon's project ids start at 0x69730000 ("is"). */
const projectFirst = 0x69730000;
const projectsMax = 1 << 16;
const trialLimitBytes = 64 << 10;

export class ContainerQuota {
  readonly #device: string;
  readonly bytes: number;
  #next = 0;

  private constructor(device: string, bytes: number) {
    this.#device = device;
    this.bytes = bytes;
  }

  /**
   * bytes: for each container. Sets a trial limit in the folder.
   * @throws CriError FAILED_PRECONDITION when the file system does not enforce it.
   */
  static open(folder: string, bytes: number): ContainerQuota {
    try {
      const quota = new ContainerQuota(deviceOf(folder), bytes);
      quota.#try(join(folder, "quota"));
      return quota;
    } catch (cause) {
      const why = ["ESRCH", "ENOSYS"].includes(errnoOf(cause) ?? "")
        ? "it has no project quotas"
        : messageOf(cause);
      const message = `"storage-opts": "overlay2.size" cannot be enforced: the file system of ${folder} does not limit folders (${why}); mount it with them (ext4 made with -O quota,project: prjquota; xfs: pquota), or remove the option`;
      throw new CriError("FAILED_PRECONDITION", message, { cause });
    }
  }

  #try(folder: string): void {
    removeTreeNow(folder);
    mkdirSync(folder, { mode: 0o700 });
    try {
      const project = this.assign([folder]);
      setProjectLimit(this.#device, project, BigInt(trialLimitBytes));
      setProjectLimit(this.#device, project, 0n);
      if (!limitsProjects(this.#device)) throw new Error("it counts usage without limiting it");
    } finally {
      removeTreeNow(folder);
    }
  }

  /** Assigns an unused project to one container's folders, which must be empty. @returns its id. */
  assign(folders: string[]): number {
    for (let tries = 0; tries < projectsMax; tries++) {
      const project = projectFirst + (this.#next++ % projectsMax);
      const { usedBytes, usedInodes } = projectQuota(this.#device, project);
      if (usedBytes > 0n || usedInodes > 0n) continue;
      setProjectLimit(this.#device, project, 0n); // a former container may have left one
      for (const folder of folders) setProject(folder, project);
      return project;
    }
    throw new Error(`all ${projectsMax} project ids are in use`);
  }

  /** Assigns the project of one of a container's folders to another one, which must be empty. */
  share(folder: string, another: string): void {
    setProject(another, projectOf(folder));
  }

  /** Limits writes to `bytes` more than the folder's project uses now. */
  setLimit(folder: string): void {
    const project = projectOf(folder);
    const { usedBytes } = projectQuota(this.#device, project);
    setProjectLimit(this.#device, project, usedBytes + BigInt(this.bytes));
  }

  /** Removes the limit of a folder's project; a missing folder or limit is no error. */
  clearLimit(folder: string): void {
    if (!existsSync(folder)) return;
    const project = projectOf(folder);
    const isOwn = project >= projectFirst && project < projectFirst + projectsMax;
    if (isOwn) setProjectLimit(this.#device, project, 0n);
  }
}

function deviceOf(folder: string): string {
  const { major, minor } = deviceNumbers(lstatSync(folder, { bigint: true }).dev);
  const path = `/sys/dev/block/${major}:${minor}/uevent`;
  const text = existsSync(path) ? readFileSync(path, "utf8") : "";
  const name = /^DEVNAME=(.*)$/m.exec(text)?.[1];
  if (name !== undefined) return join("/dev", name);
  throw new Error(`it has no block device (${major}:${minor})`);
}
