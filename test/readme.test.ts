import { expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { allKeys, findKey } from "../src/base/config_keys.ts";
import { loadConfig } from "../src/base/config.ts";
import { ImageService, RuntimeService } from "../src/proto/services.ts";

const root = join(import.meta.dirname, "..");

/** Of the table of daemon.json: key, default and description. */
function keyRows(): { key: string; value: string; about: string }[] {
  const readme = readFileSync(join(root, "README.md"), "utf8");
  const section = readme.slice(readme.indexOf("\n## daemon.json"));
  const table = section.slice(0, section.indexOf("\n## ", 1));
  const rows = table.matchAll(/^\| `(.+?)` \| (.*?) \| (.+) \|$/gm);
  return [...rows].map(([, key, value, about]) => ({ key: key!, value: value!, about: about! }));
}

test("README's table has every key of daemon.json, as it is described", () => {
  const keys = allKeys.flatMap((key) => ("about" in key ? [[key.key, key.about]] : []));
  expect(keyRows().map(({ key, about }) => [key, about])).toEqual(keys);
  const readme = readFileSync(join(root, "README.md"), "utf8");
  for (const { key } of allKeys) expect(readme).toContain(`\`${key}\``);
});

test("README's defaults are what counts where a file says nothing", () => {
  const folder = mkdtempSync(join(tmpdir(), "isulad-readme-"));
  const configOf = (values: object) => {
    const file = join(folder, "daemon.json");
    writeFileSync(file, JSON.stringify(values));
    return loadConfig(file).config;
  };
  // Without marks it is words: what is installed, say; or nothing at all.
  const told = keyRows().filter(({ value }) => value.startsWith("`"));
  const values = told.map(({ key, value }) => [key, JSON.parse(value.slice(1, -1)) as unknown]);
  try {
    expect(configOf(Object.fromEntries(values))).toEqual(configOf({}));
    const silent = keyRows().filter(({ value }) => value === "");
    for (const { key } of silent)
      expect([key, findKey(key)]).toMatchObject([key, { fallback: "" }]);
  } finally {
    rmSync(folder, { recursive: true });
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
