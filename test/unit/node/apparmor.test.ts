// Tests the text of the default AppArmor profile, and when it is loaded again.
import { expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { failure } from "../../expect.ts";
import { profileText, reloadUnloaded } from "../../../src/node/apparmor.ts";

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

test("the default profile is loaded again if it is not loaded, and only then", async () => {
  const calls: string[] = [];
  const load = (text: string) => Promise.resolve(void calls.push(text));
  await reloadUnloaded("p", ["other", "p"], load);
  expect(calls).toEqual([]);
  await reloadUnloaded("p", ["other"], load);
  expect(calls).toEqual([expect.stringContaining("profile p flags") as string]);
  const fails = () => Promise.reject(new Error("no parser"));
  expect(await failure(reloadUnloaded("p", [], fails))).toMatchObject({
    code: "FAILED_PRECONDITION",
    message: "the AppArmor profile p was unloaded and cannot be loaded again: no parser",
  });
});
