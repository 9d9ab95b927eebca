// Tests patterns with wildcards, also against regular expressions that say the same.
import { expect, test } from "bun:test";
import { matchesGlob } from "../../../src/base/glob.ts";
import { seeded } from "../../stream/wires.ts";

test.each([
  ["", "", true],
  ["", "a", false],
  ["*", "", true],
  ["?", "", false],
  ["a*b", "ab", true],
  ["a*b", "a*b", true],
  ["a*b", "acbc", false],
  ["*a*", "bab", true],
  ["a?c", "abc", true],
  ["a.c", "abc", false],
  ["**a**", "xay", true],
])("%j against %j: %p", (pattern, text, matches) => {
  expect(matchesGlob(pattern, text)).toBe(matches);
});

test("random patterns match as their regular expressions do", () => {
  const random = seeded(20_261_128);
  const word = (letters: string) =>
    Array.from({ length: random(8) }, () => letters[random(letters.length)]).join("");
  for (let round = 0; round < 3_000; round++) {
    const [pattern, text] = [word("ab*?"), word("ab")];
    const expression = new RegExp(`^${pattern.replaceAll("*", ".*").replaceAll("?", ".")}$`);
    expect([pattern, text, matchesGlob(pattern, text)]).toEqual([
      pattern,
      text,
      expression.test(text),
    ]);
  }
});

test("many wildcards against a long text that does not match", () => {
  const begin = performance.now();
  expect(matchesGlob(`${"*a".repeat(50)}b`, "a".repeat(20_000))).toBe(false);
  expect(performance.now() - begin).toBeLessThan(2_000);
});
