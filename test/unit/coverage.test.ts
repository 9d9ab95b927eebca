// Tests that docs/coverage.md names keys, calls and tests that exist, and leaves out no name of the texts behind it.
import { describe, expect, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { findKey } from "../../src/base/config_keys.ts";
import { ImageService, RuntimeService } from "../../src/proto/services.ts";
import { requiredNames } from "./required_names.ts";

const docs = join(import.meta.dirname, "../../docs");
const text = readFileSync(join(docs, "coverage.md"), "utf8");

type Row = { item: string; texts: string; state: string; names: string[]; tests: Link[] };
type Link = { title: string; file: string };

const sections = text
  .split(/^#+ (?=.+$)/m)
  .map((section) => [section.split("\n")[0]!.replaceAll("`", ""), rowsOf(section)] as const);
const rows = sections.flatMap(([, found]) => found);

function rowsOf(section: string): Row[] {
  const lines = section.matchAll(/^\| (.+?) \| (.+?) \| (.+?) \| (.*?) ?\| (.*?) ?\|$/gm);
  return [...lines]
    .filter(([, item]) => item !== "item")
    .map(([, item, texts, state, names, tests]) => ({
      item: item!,
      texts: texts!,
      state: state!,
      names: spans(names!),
      tests: [...tests!.matchAll(/\[(.+?)\]\((.+?)\)/g)].map(([, title, file]) => ({
        title: title!,
        file: file!,
      })),
    }));
}

function spans(cell: string): string[] {
  return [...cell.matchAll(/`(.+?)`/g)].map(([, name]) => name!);
}

/** A title that ends in "…" is the beginning of a test's; other ones are whole. */
function hasTest({ title, file }: Link): boolean {
  const path = join(docs, file);
  if (!file.endsWith(".test.ts") || !existsSync(path)) return false;
  const start = RegExp.escape(title.replace(/…$/, ""));
  const end = title.endsWith("…") ? "" : "\\1,";
  return new RegExp(`\\(\\s*(["'\`])${start}${end}`).test(readFileSync(path, "utf8"));
}

const calls = [...Object.keys(RuntimeService), ...Object.keys(ImageService)];

describe.each(rows)("$item", ({ texts, state, names, tests }) => {
  test("has its texts, and a state, with a reason unless it is whole", () => {
    expect(texts).toMatch(/^(–|[0-4]( [0-4])*)$/);
    expect(state).toMatch(/^(whole|(other way|left out): .+)$/);
  });

  test("names keys and calls that exist", () => {
    const known = (name: string) => calls.includes(name) || findKey(name) !== undefined;
    expect(names.filter((name) => !known(name))).toEqual([]);
  });

  test("names tests that exist, at least one if it is whole", () => {
    expect(tests.filter((one) => !hasTest(one))).toEqual([]);
    if (state === "whole") expect(tests.length).toBeGreaterThan(0);
  });
});

test("a test that does not exist is found", () => {
  const file = "../test/unit/coverage.test.ts";
  expect(hasTest({ title: "a test that does not…", file })).toBe(true);
  expect(hasTest({ title: "a test that does not", file })).toBe(false);
  expect(hasTest({ title: "another…", file })).toBe(false);
  expect(hasTest({ title: "x", file: "../test/none.test.ts" })).toBe(false);
});

test("the page counts its rows by state", () => {
  const count = (state: string) => rows.filter((row) => row.state.startsWith(state)).length;
  expect(text).toContain(
    `Of ${rows.length} rows ${count("whole")} are whole, ${count("other way")} done another way, ${count("left out")} left out.`,
  );
  expect(new Set(rows.map(({ item }) => item)).size).toBeGreaterThan(300);
});

test("every call of CRI has a row", () => {
  const named = rows.flatMap(({ names }) => names);
  expect(calls.filter((call) => !named.includes(call))).toEqual([]);
});

test.each(Object.entries(requiredNames))("%s: no name is missing", (heading, lines) => {
  const found = sections.find(([title]) => title === heading)?.[1] ?? [];
  const items = found.map(({ item }) => spans(item));
  const missing = lines
    .trim()
    .split("\n")
    .map((line) => line.trim().split(" "))
    .filter((names) => !items.some((item) => names.every((name) => item.includes(name))));
  expect(missing).toEqual([]);
});
