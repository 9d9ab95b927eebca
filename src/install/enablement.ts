// Enables the service in another system's root folder, as systemctl --root does: systemctl may be missing here.
import { lstatSync, readlinkSync, rmSync, symlinkSync } from "node:fs";
import { dirname, join } from "node:path";
import { unitPath } from "./files.ts";
import { isThere, leadsOutside, type Manifest } from "./manifest.ts";
import { service } from "./service.ts";
import { act, type Target } from "./target.ts";

const packagedUnitPath = `/usr/lib/systemd/system/${service}.service`;
const linkPath = `/etc/systemd/system/multi-user.target.wants/${service}.service`;

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
