// Installs this executable on a machine or in a root folder: programs that pods need, configuration, unit.
// Repeating it completes an installation that was cut off, and upgrades an older one.
import { readFileSync } from "node:fs";
import { loadConfig } from "../base/config.ts";
import { CriError, messageOf } from "../base/errors.ts";
import { readKernelFile, writeKernelFile } from "../sys/file.ts";
import {
  configFile,
  configPath,
  guidePath,
  modules,
  nodeFiles,
  programPath,
  type Systemd,
  sysctlPath,
  sysctls,
  unitFiles,
  unitPath,
} from "./files.ts";
import { Manifest } from "./manifest.ts";
import { enableInRoot, markToEnable, mustEnable, removeMark } from "./enablement.ts";
import { bundledFiles, defaultRuntime, installPackages, missingPrograms } from "./programs.ts";
import { put, takeBack } from "./put.ts";
import { daemonPlaces, service, systemctlSays, waitForAnswer } from "./service.ts";
import { act, exists, hasSystemd, systemdRuns, type Target } from "./target.ts";

export type InstallOptions = {
  /** The executable's own file. */
  executable: string;
  /** A folder with programs to install; it may be missing. */
  bundle: string;
  isOffline: boolean;
  /** A package manager owns program, unit and dependencies. */
  isPackaged: boolean;
};

/** @throws CriError FAILED_PRECONDITION, INVALID_ARGUMENT (the configuration), UNAVAILABLE, INTERNAL. */
export async function install(target: Target, options: InstallOptions): Promise<void> {
  const manifest = new Manifest(target.root);
  const enables = await mustEnable(target, manifest, options);
  const isRunning = await systemctlSays(target, "is-active", service);
  if (await systemctlSays(target, "is-active", "isulad")) {
    const advice = "end it first: systemctl disable --now isulad";
    const message = `iSulad's own service runs on the same socket and folders; ${advice}`;
    throw new CriError("FAILED_PRECONDITION", message);
  }
  await installPrograms(target, manifest, options);
  // A dry run has not installed a missing runtime, without which no configuration is valid.
  const isReady = !target.isDryRun || missingPrograms(target).length === 0;
  if (exists(target, configPath) && isReady) checkConfig(target);
  if (options.isPackaged && manifest.isEmpty) await markToEnable(target, manifest);
  await putFiles(target, manifest, options);
  await enableService(target, manifest, enables);
  if (target.root !== "") return;
  const program = options.isPackaged ? options.executable : programPath;
  await startService(target, startVerb({ isRunning, enables }), program);
}

/** Installs the missing ones of the programs that pods need. */
export async function installPrograms(
  target: Target,
  manifest: Manifest,
  options: InstallOptions,
): Promise<void> {
  if (options.isPackaged) return;
  const bundled = bundledFiles(target, manifest, options);
  await installPackages(target, bundled, options.isOffline);
  for (const file of bundled) await put(target, manifest, file);
}

/** Checks this machine's configuration; that of a root folder is checked when its machine starts the daemon. */
function checkConfig({ root }: Target): void {
  if (root !== "") return;
  try {
    loadConfig(configPath);
  } catch (cause) {
    const message = `${messageOf(cause)}\ncorrect ${configPath} and run this again`;
    throw new CriError("INVALID_ARGUMENT", message, { cause });
  }
}

async function putFiles(
  target: Target,
  manifest: Manifest,
  { executable, isPackaged }: InstallOptions,
): Promise<void> {
  const systemd = systemdOf(target);
  await put(target, manifest, configFile(systemd, defaultRuntime(target)));
  for (const file of nodeFiles(daemonPlaces(target).host)) {
    const isInstalled = await put(target, manifest, file);
    if (file.path === sysctlPath && isInstalled) await applyKernelSettings(target);
  }
  if (isPackaged) return await replaceByPackage(target, manifest);
  if (executable !== programPath) {
    const content = readFileSync(executable);
    await put(target, manifest, { path: programPath, content, mode: 0o755, when: "always" });
  }
  if (systemd === "none") return;
  for (const file of unitFiles()) await put(target, manifest, file);
}

function systemdOf(target: Target): Systemd {
  if (systemdRuns(target)) return "runs";
  return hasSystemd(target) ? "installed" : "none";
}

/** An earlier installation's unit would hide the package's, and its program the package's in PATH. */
async function replaceByPackage(target: Target, manifest: Manifest): Promise<void> {
  for (const path of [unitPath, guidePath, programPath]) {
    if (!manifest.files.includes(path)) continue;
    await takeBack(target, manifest, path);
    if (!target.isDryRun) await manifest.forget(path);
  }
}

/** Loads the modules and sets the sysctls of the installed files for this boot, too. */
async function applyKernelSettings(target: Target): Promise<void> {
  if (target.root !== "") return;
  const missing = Object.entries(modules)
    .filter(([, path]) => !exists(target, path))
    .map(([name]) => name);
  if (missing.length > 0) {
    await act(target, `load the kernel modules ${missing.join(", ")}`, () =>
      attempt(target, () => target.command(["modprobe", "-a", ...missing])),
    );
  }
  for (const [name, value] of Object.entries(sysctls)) {
    const path = `/proc/sys/${name.replaceAll(".", "/")}`;
    if (readKernelFile(path)?.trim() === value) continue;
    await act(target, `set ${name} to ${value}`, () =>
      attempt(target, () => writeKernelFile(path, value)),
    );
  }
}

/** Makes a change whose failure is a warning: the kernel may not have the module, or /proc/sys may be read-only. */
async function attempt(target: Target, change: () => unknown): Promise<void> {
  try {
    await change();
  } catch (error) {
    const reason = messageOf(error).replaceAll("\n", "; ");
    target.report(`warning: ${reason}; isulad-ts doctor says what pods need`);
  }
}

type StartVerb = "start" | "restart" | undefined;

/** Pods live through a restart, so an upgrade takes effect at once. */
export function startVerb(now: { isRunning: boolean; enables: boolean }): StartVerb {
  if (now.isRunning) return "restart";
  return now.enables ? "start" : undefined;
}

async function enableService(target: Target, manifest: Manifest, enables: boolean): Promise<void> {
  if (target.root !== "") await enableInRoot(target, manifest);
  else if (hasSystemd(target) && enables) {
    await act(target, `enable ${service}.service`, async () => {
      await target.command(["systemctl", "enable", "-q", service]);
    });
  }
  await removeMark(target, manifest);
}

async function startService(target: Target, verb: StartVerb, program: string): Promise<void> {
  const { command, report } = target;
  if (!systemdRuns(target)) {
    report(`systemd does not run here; start the daemon by: ${program} --config ${configPath}`);
    return;
  }
  if (verb === undefined) {
    report(`${service}.service is disabled, and stays so: systemctl enable --now ${service}`);
    return;
  }
  await act(target, `${verb} ${service}.service`, async () => {
    await command(["systemctl", "daemon-reload"]);
    await command(["systemctl", verb, service]);
    await waitForAnswer(target, program);
    report(`the kubelet needs --container-runtime-endpoint=${daemonPlaces(target).host}`);
  });
}
