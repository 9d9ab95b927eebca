// Makes the folder of network namespaces a shared mount point, as ip-netns(8) and the CNI plugins' library
// do. If they did it later, their mount of the whole folder would cover the namespaces pinned in it, whose
// files could then not be removed (EBUSY).
import { mkdirSync, realpathSync } from "node:fs";
import type { Config } from "../base/config.ts";
import { messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { mount, MS_BIND, MS_REC, MS_SHARED } from "../sys/mount.ts";
import { mountPoints } from "../sys/mount_table.ts";
import { netnsFolder } from "./namespaces.ts";

/** Best effort: pods can be created without it. */
export function prepareNetnsFolder({ netnsUnderState }: Pick<Config, "netnsUnderState">, log: Log) {
  if (netnsUnderState) return;
  try {
    shareNetnsFolder(netnsFolder);
  } catch (error) {
    const fields = { path: netnsFolder, error: messageOf(error) };
    log.warn(
      "the folder of network namespaces cannot be made a mount point; pods start without it",
      fields,
    );
  }
}

/** Does nothing if the folder is a mount point already or contains pinned namespaces. */
export function shareNetnsFolder(folder: string): void {
  mkdirSync(folder, { recursive: true, mode: 0o755 });
  const path = realpathSync(folder); // /var/run is a link on most nodes
  if (mountPoints(path).length > 0) return;
  mount(path, path, "none", MS_BIND | MS_REC);
  mount("none", path, "none", MS_SHARED | MS_REC);
}
