// Tests whether the installation of a package enables the service: as Debian's tools do, it remembers what was enabled.
import { describe, expect, test } from "bun:test";
import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import { mustEnable } from "../../../src/install/enablement.ts";
import { install } from "../../../src/install/install.ts";
import { Manifest } from "../../../src/install/manifest.ts";
import { uninstall } from "../../../src/install/uninstall.ts";
import { failureOf, options, removal, root, target, useRootFolder, write } from "./root_folder.ts";

const linkPath = "/etc/systemd/system/multi-user.target.wants/isulad-ts.service";
const packaged = () => ({ ...options(), isPackaged: true });

useRootFolder();

async function installPackage(): Promise<void> {
  write("/usr/lib/systemd/system/isulad-ts.service", "[Unit]\n");
  await install(target(), packaged());
  expect(existsSync(join(root, "/usr/lib/systemd/system/isulad-ts.service"))).toBe(true);
}

function disable(): void {
  rmSync(join(root, linkPath));
}

function enables(isPackaged = true): Promise<boolean> {
  return mustEnable(target(), new Manifest(root), { isPackaged });
}

describe("a package's installation", () => {
  test("enables the service at first, also if an earlier one was cut off before it did", async () => {
    expect(await enables()).toBe(true);
    write("/etc/sysctl.d", "not a folder");
    await failureOf(install(target(), packaged()));
    expect(new Manifest(root).isEmpty).toBe(false);
    expect(await enables()).toBe(true);
  });

  test("leaves the service as it is at an upgrade", async () => {
    await installPackage();
    expect(await enables()).toBe(true);
    disable();
    expect(await enables()).toBe(false);
    expect(await enables(false)).toBe(true); // isulad-ts install was called by hand
  });

  test("enables the service that was enabled when the package was removed", async () => {
    await installPackage();
    await uninstall(target(), { ...removal(), isPackaged: true, keepsConfig: true });
    disable(); // as systemctl does for the removal on a machine
    expect(await enables()).toBe(true);
    await installPackage();
    disable();
    expect(await enables()).toBe(false);
  });

  test("does not enable the service that was disabled when the package was removed", async () => {
    await installPackage();
    disable();
    await uninstall(target(), { ...removal(), isPackaged: true, keepsConfig: true });
    expect(await enables()).toBe(false);
  });
});
