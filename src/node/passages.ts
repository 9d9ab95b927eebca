// Lets the runtimes of pods with a user namespace reach their root file systems: they run as the
// namespace's root, which is no user of the node's, and graph is closed to all but root.
import { CriError, messageOf } from "../base/errors.ts";
import { allowGroupsTraversal } from "../sys/group_access.ts";

export class Passages {
  readonly #folders: readonly string[];
  /** The group of each pod's root, by the pod's id. */
  readonly #gids = new Map<string, number>();

  /** folders: those above the folders of containers and pods, outermost first. */
  constructor(folders: readonly string[]) {
    this.#folders = folders;
  }

  /** @throws CriError FAILED_PRECONDITION where the file system keeps no (further) access control list. */
  open(podId: string, gid: number): void {
    this.#gids.set(podId, gid);
    try {
      this.apply();
    } catch (cause) {
      this.#gids.delete(podId);
      const message = `userns_options: group ${gid} cannot be let through ${this.#folders.join(", ")}: ${messageOf(cause)}; put graph on a file system with POSIX access control lists (ext4, xfs, btrfs), or set hostUsers to true in the pod's spec`;
      throw new CriError("FAILED_PRECONDITION", message, { cause });
    }
  }

  close(podId: string): void {
    if (this.#gids.delete(podId)) this.apply();
  }

  /** Also takes away what an earlier daemon has let through. */
  apply(): void {
    for (const folder of this.#folders) allowGroupsTraversal(folder, [...this.#gids.values()]);
  }
}
