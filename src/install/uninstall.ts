// Removes an installation: its pods if forced, the service, and each file that nobody has changed.
import { CriError } from "../base/errors.ts";
import { configPath, programPath, unitPath } from "./files.ts";
import { Manifest } from "./manifest.ts";
import { removeFolders, takeBack } from "./put.ts";
import { endProcesses, podsRun, removePodCgroup, removePods, service } from "./service.ts";
import { act, exists, hasSystemd, systemdRuns, type Target } from "./target.ts";

export type UninstallOptions = {
  /** The executable's own file. */
  executable: string;
  /** Removes running pods. */
  isForced: boolean;
  /** A package manager owns program and unit. */
  isPackaged: boolean;
};

/** Paths that are removed last: with program and configuration, a repeated uninstall still finds the pods. */
const lastPaths = [unitPath, configPath, programPath];

/** @throws CriError FAILED_PRECONDITION while pods run; DATA_LOSS for a damaged record. */
export async function uninstall(target: Target, options: UninstallOptions): Promise<void> {
  const { executable, isForced, isPackaged } = options;
  const manifest = new Manifest(target.root);
  if (manifest.isEmpty && !isPackaged) {
    target.report(
      `nothing is installed ${target.root === "" ? "on this machine" : `in ${target.root}`}`,
    );
    return;
  }
  const program = isPackaged ? executable : programPath;
  if (await podsRun(target, program)) {
    if (!isForced) {
      const message =
        "pods run under isulad-ts: drain the node first, or use --force, which removes them";
      throw new CriError("FAILED_PRECONDITION", message);
    }
    await act(target, "remove the pods", () => removePods(target, program));
  }
  if (target.root === "") await stopService(target, program);
  const first = manifest.files.filter((path) => !lastPaths.includes(path));
  const last = lastPaths.filter((path) => manifest.files.includes(path));
  for (const path of [...first, ...last]) await takeBack(target, manifest, path);
  if (target.isDryRun) return;
  manifest.remove();
  removeFolders(target, manifest);
  if (systemdRuns(target)) await target.command(["systemctl", "daemon-reload"]);
  target.report(
    "isulad-ts is removed; its data (graph, /var/lib/isulad) and installed packages stay",
  );
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
