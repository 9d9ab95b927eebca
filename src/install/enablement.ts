// Decides whether an installation enables the service, and enables it in another system's root folder, as systemctl
// --root does: systemctl may be missing here.
import { lstatSync, readlinkSync, rmSync, symlinkSync } from "node:fs";
import { dirname, join } from "node:path";
import { unitPath } from "./files.ts";
import { isThere, leadsOutside, type Manifest } from "./manifest.ts";
import { put, takeBack } from "./put.ts";
import { service, systemctlSays } from "./service.ts";
import { act, systemdRuns, type Target } from "./target.ts";

const packagedUnitPath = `/usr/lib/systemd/system/${service}.service`;
const linkPath = `/etc/systemd/system/multi-user.target.wants/${service}.service`;

/**
 * Exists from the beginning of a package's first installation until the service is enabled, and from the removal of a
 * package whose service was enabled: the installation that finds it enables the service.
 */
export const markPath = "/usr/local/share/isulad-ts/enable";

export async function isEnabled(target: Target): Promise<boolean> {
  if (!systemdRuns(target)) return isThere(join(target.root, linkPath));
  return await systemctlSays(target, "is-enabled", service);
}

/** A package manager upgrades on its own: it does not enable what somebody has disabled. */
export async function mustEnable(
  target: Target,
  manifest: Manifest,
  { isPackaged }: { isPackaged: boolean },
): Promise<boolean> {
  const isUpgrade = !manifest.isEmpty && !manifest.files.includes(markPath);
  return !isPackaged || !isUpgrade || (await isEnabled(target));
}

export async function markToEnable(target: Target, manifest: Manifest): Promise<void> {
  const content = "The next installation of the package enables and starts isulad-ts.service.\n";
  await put(target, manifest, { path: markPath, content, mode: 0o644, when: "always" });
}

export async function removeMark(target: Target, manifest: Manifest): Promise<void> {
  if (target.isDryRun || !manifest.files.includes(markPath)) return;
  await takeBack(target, manifest, markPath);
  await manifest.forget(markPath);
}

/** Does nothing where there is no unit, or somebody has masked it by a link to /dev/null. */
export async function enableInRoot(target: Target, manifest: Manifest): Promise<void> {
  const statOf = (path: string) => lstatSync(join(target.root, path), { throwIfNoEntry: false });
  const unit = [unitPath, packagedUnitPath].find((path) => statOf(path) !== undefined);
  if (unit === undefined || statOf(unit)?.isFile() !== true || statOf(linkPath) !== undefined) {
    return;
  }
  await act(target, `enable ${service}.service`, async () => {
    await manifest.makeFolders(dirname(linkPath));
    symlinkSync(unit, join(target.root, linkPath));
  });
}

export async function disableInRoot(target: Target): Promise<void> {
  const link = join(target.root, linkPath);
  if (!isThere(dirname(link)) || leadsOutside(target.root, dirname(linkPath)) !== undefined) return;
  if (lstatSync(link, { throwIfNoEntry: false })?.isSymbolicLink() !== true) return;
  if (readlinkSync(link) !== unitPath) return; // a package's
  await act(target, `disable ${service}.service`, () => rmSync(link));
}
