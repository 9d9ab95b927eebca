// Tests the options of overlayfs mounts, as the kernel shows them.
import { afterAll, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { mountOverlay, overlayProblem, unmountAll } from "../../src/layer/overlay.ts";
import { readMountTable } from "../../src/sys/mount_table.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-overlay-"));
const rootfs = join(dir, "rootfs");
afterAll(() => {
  unmountAll(rootfs);
  rmSync(dir, { recursive: true });
});

async function mountedWith(options: [string, string][]): Promise<string> {
  for (const name of ["trees/one", "upper", "work", "rootfs"]) {
    mkdirSync(join(dir, name), { recursive: true });
  }
  await mountOverlay({ trees: join(dir, "trees"), names: ["one"], dir, readonly: false, options });
  const found = readMountTable().findLast(({ point }) => point === rootfs)!.options;
  unmountAll(rootfs);
  for (const name of ["upper", "work"]) rmSync(join(dir, name), { recursive: true });
  return found;
}

test("an overlayfs mount has the configured options", async () => {
  const plain = await mountedWith([]);
  const changed = await mountedWith([
    ["metacopy", "on"],
    ["index", "on"],
  ]);
  expect([plain.includes("metacopy=on"), changed.includes("metacopy=on")]).toEqual([false, true]);
  expect(changed).toContain("index=on");
  expect(plain).toMatch(/volatile/);
});

test("the trial mount at the start tells an option that the kernel refuses", async () => {
  expect(await overlayProblem(dir, [])).toBeUndefined();
  const found = await overlayProblem(dir, [["metacopy", "perhaps"]]);
  expect(found?.problem).toContain("metacopy");
});
