// Tests the removal of what a killed runc leaves in a container's state folder.
import { expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { removeLeftState } from "../../src/monitor/left_state.ts";

test("runc's files and its mounts over them are removed, nothing else", () => {
  const folder = mkdtempSync(join(tmpdir(), "isulad-left-state-"));
  for (const name of ["runc.bmwvZJ", "runc.JtkTNU"]) writeFileSync(join(folder, name), "");
  expect(spawnSync("mount", ["--bind", "/bin/true", join(folder, "runc.bmwvZJ")]).status).toBe(0);
  removeLeftState(folder);
  expect(existsSync(folder)).toBe(false);
  removeLeftState(folder);
});

test("another file stays, with an error", () => {
  const folder = mkdtempSync(join(tmpdir(), "isulad-left-state-"));
  writeFileSync(join(folder, "state.json"), "{}");
  expect(() => removeLeftState(folder)).toThrow("ENOTEMPTY");
  expect(existsSync(join(folder, "state.json"))).toBe(true);
  rmSync(folder, { recursive: true });
});
