// Makes the folder of network namespaces a shared mount point of its own, as ip-netns(8) and the CNI
// plugins' library do with it. Whoever did that later would cover the namespaces that are pinned in it
// by a mount of the whole folder: their files could then not be removed (EBUSY).
import { mkdirSync, realpathSync } from "node:fs";
import { mount, MS_BIND, MS_REC, MS_SHARED } from "../sys/mount.ts";
import { mountPoints } from "../sys/mount_table.ts";

/** Leaves a folder alone that is a mount point, or in which somebody has pinned namespaces already. */
export function shareNetnsFolder(folder: string): void {
  mkdirSync(folder, { recursive: true, mode: 0o755 });
  const path = realpathSync(folder); // /var/run is a link on most nodes
  if (mountPoints(path).length > 0) return;
  mount(path, path, "none", MS_BIND | MS_REC);
  mount("none", path, "none", MS_SHARED | MS_REC);
}
