// Tests that docs/coverage.md names keys, calls and tests that exist.
import { describe, expect, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { findKey } from "../../src/base/config_keys.ts";
import { ImageService, RuntimeService } from "../../src/proto/services.ts";

const root = join(import.meta.dirname, "../..");
const text = readFileSync(join(root, "docs/coverage.md"), "utf8");
const rows = [...text.matchAll(/^\| (.+?) \| (.+?) \| (.*?) ?\| (.*?) ?\|$/gm)]
  .map(([, item, state, names, tests]) => ({
    item: item!,
    state: state!,
    names: [...names!.matchAll(/`(.+?)`/g)].map(([, name]) => name!),
    tests: [...tests!.matchAll(/`(.+?)`/g)].map(([, file]) => file!),
  }))
  .filter(({ item }) => item !== "item");

const calls = new Set([...Object.keys(RuntimeService), ...Object.keys(ImageService)]);

describe.each(rows)("$item", ({ state, names, tests }) => {
  test("has a state, with a reason unless it is whole", () => {
    expect(state).toMatch(/^(whole|(other way|left out): .+)$/);
  });

  test("names keys and calls that exist", () => {
    const unknown = names.filter((name) => !calls.has(name) && findKey(name) === undefined);
    expect(unknown).toEqual([]);
  });

  test("names tests that exist, at least one if it is whole", () => {
    expect(tests.filter((file) => !existsSync(join(root, file)))).toEqual([]);
    if (state === "whole") expect(tests.length).toBeGreaterThan(0);
  });
});

test("the page has rows", () => {
  expect(rows.length).toBeGreaterThan(90);
});
