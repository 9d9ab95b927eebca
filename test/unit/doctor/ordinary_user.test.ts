// Tests isulad-ts doctor as an ordinary user runs it: what only root may read is no fault of the node.
import { expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { loadConfig } from "../../../src/base/config.ts";
import { unreadable } from "../../../src/base/config_files.ts";
import { examine } from "../../../src/doctor/examine.ts";
import { thisNode } from "../../../src/doctor/node.ts";

const denied = Object.assign(new Error("EACCES: permission denied, statfs '/x'"), {
  code: "EACCES",
});
const mend = "run isulad-ts doctor as root: the check could not be made";

test("what an ordinary user may not read is a warning that asks for root, what root may not is a fault", async () => {
  const root = mkdtempSync(join(tmpdir(), "isulad-doctor-"));
  try {
    const file = join(root, "daemon.json");
    writeFileSync(file, "{}");
    const disk = () => Promise.reject(denied);
    const ofDisk = async (isRoot: boolean) => {
      const node = { ...thisNode(), root, isRoot, disk };
      const findings = await examine(node, () => loadConfig(file));
      return findings.find(({ check }) => check === "disk of graph");
    };
    expect(await ofDisk(true)).toMatchObject({ state: "fail", detail: denied.message });
    expect(await ofDisk(false)).toMatchObject({ state: "warn", detail: denied.message, mend });
  } finally {
    rmSync(root, { recursive: true });
  }
});

test("a configuration that an ordinary user may not read is a warning, too", async () => {
  const load = () => {
    throw unreadable(denied);
  };
  const stateFor = async (isRoot: boolean) =>
    (await examine({ ...thisNode(), isRoot }, load))[0]?.state;
  expect([await stateFor(true), await stateFor(false)]).toEqual(["fail", "warn"]);
});

test("a program in an sbin folder is installed, also for a user whose PATH has none", () => {
  const { PATH } = process.env;
  try {
    process.env["PATH"] = "/nowhere";
    const found = ["sh", "no-such-program"].map((name) => thisNode().isInstalled(name));
    expect(found).toEqual([true, false]);
  } finally {
    process.env["PATH"] = PATH;
  }
});
