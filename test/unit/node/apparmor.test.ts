// Tests the text of the default AppArmor profile.
import { expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { profileText } from "../../../src/node/apparmor.ts";

test("the default profile names its ABI where the node has it, and denies sockets of AF_ALG", () => {
  const folder = mkdtempSync(join(tmpdir(), "apparmor-"));
  try {
    const without = profileText("p", folder);
    expect(without).toMatch(/^profile p /);
    mkdirSync(join(folder, "abi"));
    writeFileSync(join(folder, "abi/3.0"), "");
    expect(profileText("p", folder)).toBe(`abi <abi/3.0>,\n${without}`);
    expect(without).toContain("  network,\n  deny network alg,\n");
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});
