import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { allKeys } from "../src/base/config_keys.ts";
import { loadConfig } from "../src/base/config.ts";

const root = join(import.meta.dirname, "..");

test("README names every key of daemon.json, and how it is described", () => {
  const readme = readFileSync(join(root, "README.md"), "utf8");
  for (const key of allKeys) {
    expect(readme).toContain(`\`${key.key}\``);
    if ("about" in key) expect(readme).toContain(key.about);
  }
});

test("the daemon.json that we ship is accepted without a warning", () => {
  expect(loadConfig(join(root, "dist/daemon.json")).warnings).toEqual([]);
});
