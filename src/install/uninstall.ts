// Removes an installation: its pods if forced, the service, and each file that nobody has changed.
import { CriError, messageOf } from "../base/errors.ts";
import { disableInRoot, isEnabled, markPath, markToEnable } from "./enablement.ts";
import { cniListPath, configPath, programPath, unitPath } from "./files.ts";
import { removeLeftovers } from "./leftovers.ts";
import { Manifest } from "./manifest.ts";
import { removeFolders, takeBack } from "./put.ts";
import {
  daemonPlaces,
  endProcesses,
  podsRun,
  removePodCgroup,
  removePods,
  service,
} from "./service.ts";
import { act, exists, hasSystemd, systemdRuns, type Target } from "./target.ts";

export type UninstallOptions = {
  /** The executable's own file. */
  executable: string;
  /** Removes running pods. */
  isForced: boolean;
  /** Goes on although pods could not be removed. */
  abandonsPods: boolean;
  /** Leaves the files in /etc, but not the unit, to a later installation. */
  keepsConfig: boolean;
  /** A package manager owns program and unit. */
  isPackaged: boolean;
};

/** Paths that are removed last: with program and configuration, a repeated uninstall still finds the pods. */
const lastPaths = [unitPath, configPath, programPath];

/**
 * @throws CriError FAILED_PRECONDITION while pods run, or if they cannot be removed; DATA_LOSS for a damaged
 * record.
 */
export async function uninstall(target: Target, options: UninstallOptions): Promise<void> {
  const { executable, keepsConfig, isPackaged } = options;
  const manifest = new Manifest(target.root);
  if (manifest.isEmpty && !isPackaged) {
    target.report(
      `nothing is installed ${target.root === "" ? "on this machine" : `in ${target.root}`}`,
    );
    return;
  }
  const program = isPackaged ? executable : programPath;
  const hasPods = (await podsRun(target, program)) && !(await endPods(target, program, options));
  if (isPackaged && keepsConfig && (await isEnabled(target))) await markToEnable(target, manifest);
  if (target.root === "") {
    await stopService(target, program);
    const { state } = daemonPlaces(target);
    const hasNetwork = manifest.isUnchanged(cniListPath);
    if (!hasPods) await removeLeftovers(target, { state, hasNetwork });
  } else await disableInRoot(target);
  const isKept = (path: string) => path.startsWith("/etc/") || path === markPath;
  const isTaken = (path: string) => !keepsConfig || path === unitPath || !isKept(path);
  const first = manifest.files.filter((path) => isTaken(path) && !lastPaths.includes(path));
  const last = lastPaths.filter((path) => isTaken(path) && manifest.files.includes(path));
  for (const path of [...first, ...last]) {
    await takeBack(target, manifest, path);
    if (keepsConfig && !target.isDryRun) await manifest.forget(path);
  }
  if (target.isDryRun) return;
  if (!keepsConfig) manifest.remove();
  removeFolders(target, manifest);
  if (systemdRuns(target)) await target.command(["systemctl", "daemon-reload"]);
  const kept = keepsConfig ? "configuration, data" : "data";
  target.report(
    `isulad-ts is removed; its ${kept} (graph, /var/lib/isulad) and installed packages stay`,
  );
}

/** Returns false if some are left behind. */
async function endPods(
  target: Target,
  program: string,
  { isForced, abandonsPods, isPackaged }: UninstallOptions,
): Promise<boolean> {
  if (!isForced && !abandonsPods) {
    // A package manager has no --force that reaches this.
    const way = isPackaged
      ? "remove them by isulad-ts rmp --all --force"
      : "use --force, which removes them";
    const message = `pods run under isulad-ts: drain the node first, or ${way}`;
    throw new CriError("FAILED_PRECONDITION", message);
  }
  try {
    await act(target, "remove the pods", () => removePods(target, program));
    return true;
  } catch (error) {
    if (!abandonsPods) throw error;
    target.report(`going on without them: ${messageOf(error)}`);
    return false;
  }
}

async function stopService(target: Target, program: string): Promise<void> {
  const isUnit =
    exists(target, unitPath) || exists(target, "/usr/lib/systemd/system/isulad-ts.service");
  if (hasSystemd(target) && isUnit) {
    await act(target, `stop and disable ${service}.service`, async () => {
      const now = systemdRuns(target) ? ["--now"] : [];
      await target.command(["systemctl", "disable", "-q", ...now, service]);
    });
  }
  if (!exists(target, program)) return;
  await act(target, `end the processes of ${program}`, async () => {
    await endProcesses(program);
    await removePodCgroup(target);
  });
}
