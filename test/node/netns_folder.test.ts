// Tests that the folder of network namespaces becomes a mount point before the first namespace is pinned in
// it.
import { afterAll, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, unlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { shareNetnsFolder } from "../../src/node/netns_folder.ts";
import { mount, MS_BIND, unmount } from "../../src/sys/mount.ts";
import { mountPoints } from "../../src/sys/mount_table.ts";
import { unmountUnder } from "../host.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-netns-folder-"));
afterAll(() => {
  unmountUnder(dir);
  rmSync(dir, { recursive: true, force: true });
});

const isExit0 = (...argv: string[]) => spawnSync(argv[0]!, argv.slice(1)).status === 0;
/** Prepares the folder as `ip netns add` does. */
function prepare(folder: string): void {
  if (isExit0("mount", "--make-rshared", folder)) return;
  expect(isExit0("mount", "--rbind", folder, folder)).toBe(true);
  expect(isExit0("mount", "--make-rshared", folder)).toBe(true);
}
function pin(file: string): void {
  writeFileSync(file, "");
  mount("/proc/self/ns/net", file, "none", MS_BIND);
}

test("a namespace can be unpinned after another tool has prepared the folder", () => {
  const folder = join(dir, "shared");
  shareNetnsFolder(folder);
  pin(join(folder, "pod"));
  prepare(folder);
  unmount(join(folder, "pod"));
  expect(() => unlinkSync(join(folder, "pod"))).not.toThrow();
  shareNetnsFolder(folder);
  expect(mountPoints(folder)).toEqual([folder]);
});

test("without shareNetnsFolder() the file stays busy", () => {
  const folder = join(dir, "plain");
  mkdirSync(folder);
  pin(join(folder, "pod"));
  prepare(folder);
  unmount(join(folder, "pod"));
  expect(() => unlinkSync(join(folder, "pod"))).toThrow("EBUSY");
});

test("a folder with pinned namespaces stays unchanged", () => {
  const folder = join(dir, "used");
  mkdirSync(folder);
  pin(join(folder, "pod"));
  shareNetnsFolder(folder);
  expect(mountPoints(folder)).toEqual([join(folder, "pod")]);
});
