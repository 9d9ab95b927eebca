// Lists the loaded AppArmor profiles and loads the default one for containers.
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { CriError, codeOf, errnoOf, messageOf } from "../base/errors.ts";
import { failureOutput, run } from "../sys/run.ts";

const defaultProfileName = "isulad-ts-default";
const enabledFile = "/sys/module/apparmor/parameters/enabled";
const profilesFile = "/sys/kernel/security/apparmor/profiles";
const policyFolder = "/etc/apparmor.d";
const loadMs = 30_000;

/** Returns the names of the loaded profiles; undefined: AppArmor is not enabled in this kernel. */
export function loadedProfiles(): string[] | undefined {
  try {
    if (readFileSync(enabledFile, "utf8")[0] !== "Y") return undefined;
    const profiles = readFileSync(profilesFile, "utf8").trimEnd().split("\n");
    return profiles.map((line) => line.replace(/ \([a-z]+\)$/, ""));
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return undefined;
    throw error;
  }
}

/**
 * Loads the default profile, replacing that of an earlier version. Without apparmor_parser, containers that
 * name no profile run unconfined, and those that name the default one are refused. isDisabled: treats the
 * kernel as one without AppArmor.
 */
export async function openApparmor(isDisabled: boolean): Promise<{
  apparmor?: { defaultProfile?: string };
  problem?: string;
}> {
  if (isDisabled || loadedProfiles() === undefined) return {};
  try {
    await load(profileText(defaultProfileName, policyFolder));
    return { apparmor: { defaultProfile: defaultProfileName } };
  } catch (error) {
    const isLoaded = loadedProfiles()?.includes(defaultProfileName) === true;
    const apparmor = isLoaded ? { defaultProfile: defaultProfileName } : {};
    const problem = `cannot load the AppArmor profile ${defaultProfileName}: ${messageOf(error)}`;
    return { apparmor, problem };
  }
}

/** Loads the default profile again if an administrator has unloaded it (aa-remove-unknown, aa-teardown). */
export async function reloadUnloaded(
  name: string,
  loaded = loadedProfiles(),
  loadProfile = load,
): Promise<void> {
  if (loaded === undefined || loaded.includes(name)) return;
  try {
    await loadProfile(profileText(name, policyFolder));
  } catch (cause) {
    const message = `the AppArmor profile ${name} was unloaded and cannot be loaded again: ${messageOf(cause)}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause });
  }
}

async function load(profile: string): Promise<void> {
  const argv = ["apparmor_parser", "--replace", "--skip-cache"];
  const options = { signal: AbortSignal.timeout(loadMs), input: profile };
  const result = await run(argv, options).catch((error: unknown) => {
    if (codeOf(error) !== "NOT_FOUND") throw error;
    const hint = "apparmor_parser is missing: install the package apparmor";
    throw new CriError("FAILED_PRECONDITION", hint, { cause: error });
  });
  if (result.exitCode !== 0) {
    throw new CriError("INTERNAL", `apparmor_parser: ${failureOutput(result)}`);
  }
}

/**
 * Returns a profile that denies mounts, sockets of AF_ALG (socketcall(2), which 32-bit programs have, opens them
 * past a seccomp filter) and the kernel's own switches, and leaves the rest to a container's other limits. A
 * container may write only the sysctls of its network and ipc namespaces, and may trace and signal only processes
 * under the same profile.
 *
 * It names the ABI it is written for: in a later one whatever has no rule of its own is denied, such as user
 * namespaces. Parsers before 3.0, which do not know the line, come without the file.
 */
export function profileText(name: string, folder: string): string {
  const abi = "abi/3.0";
  const header = existsSync(join(folder, abi)) ? `abi <${abi}>,\n` : "";
  return `${header}profile ${name} flags=(attach_disconnected, mediate_deleted) {
  file,
  network,
  deny network alg,
  unix,
  capability,
  umount,
  signal (receive),
  signal (send) peer=${name},
  ptrace (read, trace, readby, tracedby) peer=${name},

  deny mount,
  deny remount,
  deny pivot_root,

  deny /proc/{kcore,kmem,mem,kallsyms,kpagecount,kpageflags,sysrq-trigger} rwklx,
  deny /proc/{acpi,asound,bus,driver,fs,irq,scsi,tty}/** wklx,
  deny /proc/sys/{abi,crypto,debug,dev,user,vm}/** wklx,
  deny /proc/sys/fs/{[^m],m[^q]}** wklx,
  deny /proc/sys/kernel/{[^ms],m[^s],s[^eh]}** wklx,
  deny /proc/sys/kernel/seccomp/** wklx,

  deny /sys/[^f]** wklx,
  deny /sys/f[^s]** wklx,
  deny /sys/fs/[^c]** wklx,
  deny /sys/fs/c[^g]** wklx,
  deny /sys/firmware/** rwklx,
  deny /sys/kernel/security/** rwklx,
  deny /sys/devices/virtual/powercap/** rwklx,
}
`;
}
