// How much each container may write into its own layer, by project quotas of the graph folder's file system.
// Decision: which project ids are taken is asked of the file system each time. No record of ours could
// be at odds with it, and ids that somebody else uses are left alone.
import { existsSync, lstatSync, mkdirSync, readFileSync, rmSync } from "node:fs";
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

/** Our project ids: from 0x69730000 ("is") up. */
const projectFirst = 0x69730000;
const projectsMax = 1 << 16;
const trialLimitBytes = 64 << 10;

export class LayerQuota {
  readonly #device: string;
  readonly bytes: number;
  #next = 0;

  private constructor(device: string, bytes: number) {
    this.#device = device;
    this.bytes = bytes;
  }

  /**
   * folder: on the file system; bytes: for each layer. Sets a limit there for a trial.
   * @throws CriError FAILED_PRECONDITION where the file system does not hold to one.
   */
  static open(folder: string, bytes: number): LayerQuota {
    try {
      const quota = new LayerQuota(deviceOf(folder), bytes);
      quota.#try(join(folder, "quota"));
      return quota;
    } catch (cause) {
      const why = ["ESRCH", "ENOSYS"].includes(errnoOf(cause) ?? "")
        ? "it counts no projects"
        : messageOf(cause);
      const message = `"storage-opts": "overlay2.size" cannot be kept: the file system of ${folder} limits no folders (${why}); mount it with project quotas (ext4 made with -O quota,project: prjquota; xfs: pquota), or take the option out`;
      throw new CriError("FAILED_PRECONDITION", message, { cause });
    }
  }

  #try(folder: string): void {
    rmSync(folder, { recursive: true, force: true });
    mkdirSync(folder, { mode: 0o700 });
    try {
      const project = this.#assign([folder]);
      setProjectLimit(this.#device, project, BigInt(trialLimitBytes));
      setProjectLimit(this.#device, project, 0n);
      if (!limitsProjects(this.#device)) throw new Error("it counts and does not limit");
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  }

  /** Gives empty folders one project of their own. */
  #assign(folders: string[]): number {
    for (let tries = 0; tries < projectsMax; tries++) {
      const project = projectFirst + (this.#next++ % projectsMax);
      const { usedBytes, usedInodes } = projectQuota(this.#device, project);
      if (usedBytes > 0n || usedInodes > 0n) continue;
      setProjectLimit(this.#device, project, 0n); // one may be left of an earlier owner
      for (const folder of folders) setProject(folder, project);
      return project;
    }
    throw new Error(`all ${projectsMax} project ids are taken`);
  }

  /** Before anything is written into these folders of one container. */
  begin(folders: string[]): void {
    this.#assign(folders);
  }

  /** From now on so much may be written beyond what is there. */
  limit(folder: string): void {
    const project = projectOf(folder);
    const { usedBytes } = projectQuota(this.#device, project);
    setProjectLimit(this.#device, project, usedBytes + BigInt(this.bytes));
  }

  /** Takes the limit of a folder's project away; a folder that has none, or is not there, is no error. */
  end(folder: string): void {
    if (!existsSync(folder)) return;
    const project = projectOf(folder);
    const isOurs = project >= projectFirst && project < projectFirst + projectsMax;
    if (isOurs) setProjectLimit(this.#device, project, 0n);
  }
}

/** The block device of a folder's file system. */
function deviceOf(folder: string): string {
  const { major, minor } = deviceNumbers(lstatSync(folder, { bigint: true }).dev);
  const path = `/sys/dev/block/${major}:${minor}/uevent`;
  const name = existsSync(path)
    ? /^DEVNAME=(.*)$/m.exec(readFileSync(path, "utf8"))?.[1]
    : undefined;
  if (name !== undefined) return join("/dev", name);
  throw new Error(`it has no block device (${major}:${minor})`);
}
