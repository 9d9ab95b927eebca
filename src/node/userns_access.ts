// Grants pods with a user namespace access to their root file systems: their OCI runtime runs as the
// namespace's root, an unprivileged user of the node, and only root may enter graph.
import { CriError, messageOf } from "../base/errors.ts";
import { allowGroupsTraversal } from "../sys/group_access.ts";

export class UsernsAccess {
  readonly #folders: readonly string[];
  /** The group of each pod's root, by pod id. */
  readonly #gids = new Map<string, number>();

  /** folders: the parents of containers' and pods' folders, outermost first. */
  constructor(folders: readonly string[]) {
    this.#folders = folders;
  }

  /**
   * Grants access to the pods of an earlier daemon, and revokes all other access that it granted. gids: the
   * group of each pod's root, by pod id. @throws when the file system cannot store the access control list.
   */
  restore(gids: ReadonlyMap<string, number>): void {
    for (const [podId, gid] of gids) this.#gids.set(podId, gid);
    try {
      this.#apply();
    } catch (error) {
      this.#gids.clear(); // otherwise revoke() would fail as well, and no pod could be removed
      throw error;
    }
  }

  /** @throws CriError FAILED_PRECONDITION when the file system cannot store the access control list. */
  grant(podId: string, gid: number): void {
    this.#gids.set(podId, gid);
    try {
      this.#apply();
    } catch (cause) {
      this.#gids.delete(podId);
      const message = `userns_options: cannot grant group ${gid} access to ${this.#folders.join(", ")}: ${messageOf(cause)}; put graph on a file system with POSIX access control lists (ext4, xfs, btrfs), or set hostUsers to true in the pod's spec`;
      throw new CriError("FAILED_PRECONDITION", message, { cause });
    }
  }

  revoke(podId: string): void {
    if (this.#gids.delete(podId)) this.#apply();
  }

  #apply(): void {
    for (const folder of this.#folders) allowGroupsTraversal(folder, [...this.#gids.values()]);
  }
}
