// Finds the programs that pods need, and gets missing ones from the bundle or the distribution's packages.
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { systemFolders } from "../base/config_host.ts";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import type { InstalledFile } from "./files.ts";
import type { Manifest } from "./manifest.ts";
import { act, type Target } from "./target.ts";

const cniFolders = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"];
/** The plugins of the list that is installed, and loopback, which every pod needs. */
const cniPlugins = ["bridge", "host-local", "loopback", "portmap"];

/** name: for messages; apt and dnf: packages that have it; bundled: where a bundle's files go. */
type Need = {
  name: string;
  apt: string;
  dnf: string;
  bundled?: string;
  isThere(target: Target): boolean;
};

const bundledRunc = "/usr/local/sbin/runc";

const needs: readonly Need[] = [
  {
    name: "runc",
    apt: "runc",
    dnf: "runc",
    bundled: bundledRunc,
    isThere: (target) => finds(target, ["runc", "crun"]),
  },
  {
    name: "CNI plugins",
    apt: "containernetworking-plugins",
    dnf: "containernetworking-plugins",
    bundled: `${cniFolders[0]}/`,
    isThere: hasCniPlugins,
  },
  program("iptables", "iptables", "iptables-nft"),
  program("ip", "iproute2", "iproute"),
  program("unshare", "util-linux", "util-linux"),
];

function program(name: string, apt: string, dnf: string): Need {
  return { name, apt, dnf, isThere: (target) => finds(target, [name]) };
}

function finds(target: Target, names: string[]): boolean {
  return names.some((name) =>
    systemFolders.some((folder) => isProgram(target, `${folder}/${name}`)),
  );
}

/** The OCI runtime of daemon.json: crun only where runc is missing. */
export function defaultRuntime(target: Target): "runc" | "crun" {
  return finds(target, ["crun"]) && !finds(target, ["runc"]) ? "crun" : "runc";
}

function hasCniPlugins(target: Target): boolean {
  return cniFolders.some((folder) =>
    cniPlugins.every((name) => isProgram(target, `${folder}/${name}`)),
  );
}

function isProgram({ root }: Target, path: string): boolean {
  const stat = statSync(join(root, path), { throwIfNoEntry: false });
  return stat !== undefined && stat.isFile() && (stat.mode & 0o111) !== 0;
}

/** Returns the names of missing programs. */
export function missingPrograms(target: Target): string[] {
  return needs.filter((need) => !need.isThere(target)).map(({ name }) => name);
}

/**
 * Returns the programs of a bundle that are to be installed: missing ones, and newer versions of those that
 * came from a bundle. bundle: a folder with runc and cni/; anything else of that name is none.
 * @throws CriError FAILED_PRECONDITION for a bundle of another user than the executable's
 */
export function bundledFiles(
  target: Target,
  manifest: Manifest,
  { executable, bundle }: { executable: string; bundle: string },
): InstalledFile[] {
  if (!isBundle(bundle)) return [];
  const owner = statSync(bundle).uid;
  // Whoever may write into the executable's folder, such as /tmp, could have put programs for root there.
  if (owner !== 0 && owner !== statSync(executable).uid) {
    const advice = `remove it, or move ${executable} into a folder of its own`;
    const message = `${bundle} belongs to another user than the executable: ${advice}`;
    throw new CriError("FAILED_PRECONDITION", message);
  }
  const missing = missingPrograms(target);
  const read = (name: string, path: string): InstalledFile => ({
    path,
    content: readFileSync(join(bundle, name)),
    mode: 0o755,
    when: "unchanged",
  });
  const files: InstalledFile[] = [];
  if (missing.includes("runc") || manifest.isUnchanged(bundledRunc)) {
    files.push(read("runc", bundledRunc));
  }
  for (const name of readdirSync(join(bundle, "cni"))) {
    const path = `${cniFolders[0]}/${name}`;
    const isWanted = missing.includes("CNI plugins") || manifest.isUnchanged(path);
    if (isWanted) files.push(read(`cni/${name}`, path));
  }
  return files;
}

/** Other programs are named "bundle", too, as Ruby's. */
function isBundle(path: string): boolean {
  const kindOf = (name: string) => statSync(join(path, name), { throwIfNoEntry: false });
  try {
    return kindOf("runc")?.isFile() === true && kindOf("cni")?.isDirectory() === true;
  } catch (error) {
    if (errnoOf(error) === "ENOTDIR") return false;
    throw error;
  }
}

/**
 * Installs packages with missing programs that are not among the bundled files.
 * @throws CriError FAILED_PRECONDITION if some are still missing.
 */
export async function installPackages(
  target: Target,
  bundled: readonly InstalledFile[],
  isOffline: boolean,
): Promise<void> {
  const isMissing = (need: Need) =>
    !need.isThere(target) &&
    !bundled.some(({ path }) => need.bundled !== undefined && path.startsWith(need.bundled));
  const missing = needs.filter(isMissing);
  if (missing.length === 0) return;
  const names = missing.map(({ name }) => name).join(", ");
  if (target.root !== "") {
    target.report(`missing in ${target.root}: ${names}; install them there`);
    return;
  }
  if (isOffline) {
    const advice = "a bundle has runc and CNI plugins; install other packages from your own media";
    throw new CriError(
      "FAILED_PRECONDITION",
      `programs are missing that --offline cannot get: ${names}; ${advice}`,
    );
  }
  const manager = packageManager(target);
  if (manager === undefined) {
    const advice = "this machine has neither apt-get nor dnf: install them by hand";
    throw new CriError("FAILED_PRECONDITION", `programs are missing: ${names}; ${advice}`);
  }
  const packages = missing.map((need) => need[manager]);
  const action = `install the packages ${packages.join(" ")} (by ${manager}; it may take minutes)`;
  await act(target, action, async () => {
    await (manager === "apt" ? aptInstall(target, packages) : dnfInstall(target, packages));
    const left = missing.filter(isMissing).map(({ name }) => name);
    if (left.length === 0) return;
    const message = `still missing after their packages were installed: ${left.join(", ")}`;
    throw new CriError("FAILED_PRECONDITION", message);
  });
}

function packageManager(target: Target): "apt" | "dnf" | undefined {
  if (finds(target, ["apt-get"])) return "apt";
  return finds(target, ["dnf"]) ? "dnf" : undefined;
}

const lockMs = 5 * 60_000;
const lockPollMs = 1_000;

/**
 * Installs Debian's packages. Waits for up to five minutes while another program holds a lock of apt or dpkg: after its
 * first boot a machine often updates itself (apt-daily, unattended-upgrades).
 */
export async function aptInstall(
  { command, report }: Pick<Target, "command" | "report">,
  packages: string[],
): Promise<void> {
  const apt = (...words: string[]) =>
    whileLocked(report, () =>
      command(["apt-get", ...words], { DEBIAN_FRONTEND: "noninteractive", LC_ALL: "C" }),
    );
  try {
    await apt("update");
  } catch (error) {
    report(
      `apt-get update failed, going on with the package lists of this machine: ${messageOf(error)}`,
    );
  }
  const wait = `DPkg::Lock::Timeout=${lockMs / 1000}`;
  await apt("-o", wait, "install", "-y", "--no-install-recommends", ...packages);
}

/** Repeats what fails for a lock: apt waits for those of dpkg, not for those of package lists and archives. */
async function whileLocked(
  report: Target["report"],
  change: () => Promise<unknown>,
): Promise<void> {
  const endMs = performance.now() + lockMs;
  for (let isFirst = true; ; isFirst = false) {
    try {
      await change();
      return;
    } catch (error) {
      const isLocked = /Could not get lock|Unable to lock/.test(messageOf(error));
      if (!isLocked || performance.now() > endMs) throw error;
      if (isFirst) report("another program holds a lock of apt, waiting for it");
    }
    await sleep(lockPollMs);
  }
}

async function dnfInstall({ command }: Target, packages: string[]): Promise<void> {
  await command(["dnf", "install", "-y", ...packages]);
}
