import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { allKeys } from "../src/base/config_keys.ts";
import { loadConfig } from "../src/base/config.ts";
import { ImageService, RuntimeService } from "../src/proto/services.ts";

const root = join(import.meta.dirname, "..");

test("README names every key of daemon.json, and how it is described", () => {
  const readme = readFileSync(join(root, "README.md"), "utf8");
  for (const key of allKeys) {
    expect(readme).toContain(`\`${key.key}\``);
    if ("about" in key) expect(readme).toContain(key.about);
  }
});

test("README tells of every RPC of CRI", () => {
  const readme = readFileSync(join(root, "README.md"), "utf8");
  const section = readme.slice(readme.indexOf("## Every RPC of CRI v1"));
  const table = section.slice(0, section.indexOf("\n## ", 1));
  const told = [...table.matchAll(/`(\w+)`(?=[^|]*\|[^|]*\|$)/gm)].map((match) => match[1]!);
  expect(told.sort()).toEqual(Object.keys({ ...RuntimeService, ...ImageService }).sort());
});

test("the daemon.json that we ship is accepted without a warning", () => {
  expect(loadConfig(join(root, "dist/daemon.json")).warnings).toEqual([]);
});
