// Removes what the daemon has made on a node besides its data, once it has ended and no pod is left: its runtime
// state, the installed network's bridge and addresses, and the folder of network namespaces. Best effort: a
// failure is reported, and all of it but the addresses goes with the next boot.
import { readdirSync, realpathSync, rmdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { errnoOf, messageOf } from "../base/errors.ts";
import { trustedJsonValue } from "../base/json.ts";
import { netnsFolder } from "../node/namespaces.ts";
import { cniList } from "../proto/installed_files.ts";
import { unmount } from "../sys/mount.ts";
import { mountPoints } from "../sys/mount_table.ts";
import { act, type Target } from "./target.ts";
import { removeTreeNow } from "../sys/remove_tree.ts";

type Network = { name: string; plugins: { bridge?: string }[] };
const { name, plugins } = trustedJsonValue(cniList) as Network;
const bridge = plugins[0]!.bridge!;
/** The default of the plugin host-local. */
const leasesFolder = "/var/lib/cni/networks";

/** hasNetwork: the pod network was the installed one. */
export async function removeLeftovers(
  target: Target,
  { state, hasNetwork }: { state: string; hasNetwork: boolean },
): Promise<void> {
  const steps: [string, boolean, () => void | Promise<void>][] = [
    [`remove the runtime state in ${state}`, isOwnState(state), () => removeTreeNow(state)],
    [
      `remove the bridge ${bridge}`,
      hasNetwork && isUnusedBridge(bridge),
      () => removeBridge(target),
    ],
    [
      `remove the empty folder ${netnsFolder}`,
      mountPoints(real(netnsFolder)).length > 0 && namesIn(netnsFolder).length === 0,
      () => removeMount(real(netnsFolder)),
    ],
  ];
  for (const [what, isThere, remove] of steps) {
    if (!isThere) continue;
    try {
      await act(target, what, remove);
    } catch (error) {
      target.report(`warning: cannot ${what}: ${messageOf(error)}`);
    }
  }
  if (hasNetwork && !target.isDryRun) removeLeases(leasesFolder, name);
}

/** Elsewhere than on the file system of /run the folder may hold more than a daemon's state. */
function isOwnState(state: string): boolean {
  const isLocked = statSync(join(state, "daemon.lock"), { throwIfNoEntry: false }) !== undefined;
  return isLocked && real(state).startsWith("/run/") && mountPoints(real(state)).length === 0;
}

function isUnusedBridge(link: string): boolean {
  const isThere = statSync(`/sys/class/net/${link}/brif`, { throwIfNoEntry: false }) !== undefined;
  return isThere && namesIn(`/sys/class/net/${link}/brif`).length === 0;
}

async function removeBridge({ command }: Target): Promise<void> {
  await command(["ip", "link", "delete", bridge]);
}

function removeMount(path: string): void {
  unmount(path);
  rmdirSync(path);
}

/** Removes a network's folder of addresses unless one is in use, and the folders around it if they are empty. */
export function removeLeases(networks: string, network: string): void {
  const folder = join(networks, network);
  const isAddress = (file: string) => /^[0-9]+\.[0-9.]+$|:/.test(file);
  if (namesIn(folder).some(isAddress)) return;
  removeTreeNow(folder);
  for (const outer of [networks, join(networks, "..")]) {
    try {
      rmdirSync(outer);
    } catch (error) {
      if (["ENOENT", "ENOTEMPTY"].includes(errnoOf(error) ?? "")) return;
      throw error;
    }
  }
}

export function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return [];
    throw error;
  }
}

/** /var/run is a link on most nodes. */
function real(path: string): string {
  try {
    return realpathSync(path);
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return path;
    throw error;
  }
}
