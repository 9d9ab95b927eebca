// Tests the files that isulad-ts debug and support-bundle write.
import { afterEach, beforeEach, expect, spyOn, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { save } from "../../../src/cli/debug.ts";

let dir = "";
beforeEach(() => (dir = mkdtempSync(join(tmpdir(), "isulad-save-"))));
afterEach(() => rmSync(dir, { recursive: true }));

test("a bundle is for its owner only, also in a file that others could read", () => {
  using out = spyOn(process.stdout, "write").mockImplementation(() => true);
  const old = join(dir, "old");
  writeFileSync(old, "longer than the bundle", { mode: 0o644 });
  for (const path of [old, join(dir, "new")]) {
    save(path, "bundle");
    expect(readFileSync(path, "utf8")).toBe("bundle");
    expect(statSync(path).mode & 0o777).toBe(0o600);
  }
  save("/dev/null", "bundle");
  expect(statSync("/dev/null").mode & 0o777).not.toBe(0o600);
  expect(out.mock.calls.map(([text]) => text)).toEqual([`${old}\n`, `${dir}/new\n`, "/dev/null\n"]);
});
