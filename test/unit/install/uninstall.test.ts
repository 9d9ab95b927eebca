// Tests isulad-ts uninstall in a root folder: what it removes, and what it keeps.
import { describe, expect, test } from "bun:test";
import { existsSync, mkdirSync, renameSync, rmSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { install } from "../../../src/install/install.ts";
import { manifestPath } from "../../../src/install/manifest.ts";
import { uninstall } from "../../../src/install/uninstall.ts";
import {
  configPath,
  failureOf,
  listPath,
  options,
  programPath,
  read,
  removal,
  root,
  said,
  scratch,
  target,
  tree,
  useRootFolder,
  write,
} from "./root_folder.ts";

useRootFolder();

describe("uninstall", () => {
  test("leaves the folder as it was before", async () => {
    const before = tree();
    await install(target(), options());
    await uninstall(target(), removal());
    expect(tree()).toEqual(before);
  });

  test("keeps what was changed, and what was there before", async () => {
    write("/etc/crictl.yaml", "timeout: 2\n");
    await install(target(), options());
    write(configPath, "{}");
    await uninstall(target(), removal());
    expect(read(configPath)).toBe("{}");
    expect(read("/etc/crictl.yaml")).toBe("timeout: 2\n");
    expect(said).toContain(`keep ${configPath}, which was changed since its installation`);
    expect(existsSync(join(root, programPath))).toBe(false);
  });

  test("keeps a folder that somebody has replaced by a link", async () => {
    await install(target(), options());
    rmSync(join(root, "etc/isulad"), { recursive: true });
    symlinkSync(scratch, join(root, "etc/isulad"));
    await uninstall(target(), removal());
    expect(existsSync(join(root, programPath))).toBe(false);
    expect(existsSync(join(root, "etc/isulad"))).toBe(true);
  });

  test("removes nothing behind a link that leads out of the root folder", async () => {
    await install(target(), options());
    const outside = join(scratch, "etc");
    renameSync(join(root, "etc"), outside); // as if this machine had the same files
    mkdirSync(join(outside, "empty"));
    symlinkSync(outside, join(root, "etc"));
    write(manifestPath, `${read(manifestPath)}folder  /etc/empty\n`);
    await uninstall(target(), removal());
    expect(existsSync(join(outside, "isulad/daemon.json"))).toBe(true);
    expect(existsSync(join(outside, "empty"))).toBe(true);
    expect(existsSync(join(root, programPath))).toBe(false);
    const why = `keep ${configPath}: ${root}/etc/isulad is a link to ${outside}/isulad, outside of ${root}`;
    expect(said).toContain(why);
  });

  test("refuses a record outside of the root folder", async () => {
    await install(target(), options());
    const outside = join(scratch, "share");
    renameSync(join(root, "usr/local/share"), outside);
    symlinkSync(outside, join(root, "usr/local/share"));
    for (const again of [install, uninstall]) {
      expect(await failureOf(again(target(), { ...options(), ...removal() }))).toMatchObject({
        code: "FAILED_PRECONDITION",
        message: expect.stringContaining(`is a link to ${outside}/isulad-ts, outside of ${root}`),
      });
    }
    expect(existsSync(join(outside, "isulad-ts/installed"))).toBe(true);
  });

  test("leaves the configuration to a later installation if asked to", async () => {
    const before = tree();
    await install(target(), options());
    await uninstall(target(), { ...removal(), keepsConfig: true });
    const left = Object.keys(tree()).filter(
      (name) => !(name in before) && tree()[name]?.[0] === "1",
    );
    const settings = ["/etc/modules-load.d/isulad-ts.conf", "/etc/sysctl.d/99-isulad-ts.conf"];
    const kept = [configPath, listPath, "/etc/crictl.yaml", ...settings, manifestPath];
    expect(left.sort()).toEqual(kept.map((path) => path.slice(1)).sort());
    await install(target(), options());
    await uninstall(target(), removal());
    expect(tree()).toEqual(before);
  });

  test("says so where nothing is installed", async () => {
    await uninstall(target(), removal());
    expect(said).toEqual([`nothing is installed in ${root}`]);
  });
});
