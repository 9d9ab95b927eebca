// Tests that no regular expression of the sources takes more than linear time: text from outside chooses what it searches.
import { describe, expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { rules } from "../src/doctor/redact.ts";
import { slowRegexes, whySlow } from "./slow_regexes.ts";

const src = join(import.meta.dirname, "../src");

/** Patterns that are made from constants, or of what the user of a command types. */
const made: Record<string, number> = {
  "cli/filters.ts": 1,
  "cli/top.ts": 1,
  "doctor/redact.ts": 5, // checked below
  "folders.ts": 1,
  "nri/check_answers.ts": 1,
  "registry/certificates.ts": 1,
  "spec/selinux.ts": 1,
  "sys/file.ts": 1,
  "sys/process.ts": 2,
};

const files = readdirSync(src, { recursive: true, encoding: "utf8" })
  .filter((file) => file.endsWith(".ts") && !file.startsWith("proto/"))
  .sort();

test("no source has a pattern that takes more than linear time", () => {
  const found: string[] = [];
  for (const file of files) {
    const slow = slowRegexes(readFileSync(join(src, file), "utf8"));
    const unchecked = slow.filter(({ why }) => why.includes("is made"));
    const known = unchecked.length === (made[file] ?? 0) ? unchecked : [];
    for (const one of slow) {
      if (!known.includes(one)) found.push(`src/${file}:${one.line}: ${one.text}: ${one.why}`);
    }
  }
  expect(found).toEqual([]);
});

test.each(rules.map(([pattern]) => pattern))("%p of the support bundle is none", (pattern) => {
  expect(whySlow(pattern)).toBeUndefined();
});

describe("found are", () => {
  test.each([
    ["the header of 2026-11-28", "const a = /^([!#$%&'*+.^_`|~\\w-]+):[ \\t]*(.*?)[ \\t]*$/;"],
    ["blanks around anything", "x.match(/\\s*(.*?)\\s*$/)"],
    ["blanks at an end", 'x.replace(/\\s+$/, "")'],
    ["what optional parts divide", "const a = /^a*(?:b?)a*$/;"],
    ["digits with or without a point", "const a = /^\\d+\\.?\\d*$/;"],
    ["a repetition of a repetition", "const a = /^(?:a+)+$/;"],
    ["names around a word", "const a = /[\\w.-]*(?:token|secret)[\\w.-]*=/g;"],
    ["a type's neighbour", "const a: RegExp = /x*x*$/ as RegExp;"],
    ["a pattern that is made", "const a = new RegExp(`^${b}$`);"],
    ["a pattern that is made without new", 'const a = RegExp("a*a*$");'],
  ])("%s", (_, source) => {
    expect(slowRegexes(source)).toHaveLength(1);
  });

  test.each([
    "const a = /^[!#$%&'*+.^_`|~\\w-]+$/;",
    "const a = /^\\s*\\S+\\s*$/;",
    "const a = /(?<![\\w.-])[\\w.-]+=/;",
    "const a = /^a{0,9}a{0,9}$/;",
    'const a = "/\\\\s+$/"; // /\\s+$/',
  ])("but not %s", (source) => {
    expect(slowRegexes(source)).toEqual([]);
  });
});
