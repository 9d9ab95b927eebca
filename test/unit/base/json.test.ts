// Tests the JSON parser that knows the line of each value.
import { expect, test } from "bun:test";
import {
  JsonSyntaxError,
  merged,
  parseWithLines,
  placeAt,
  plainValue,
} from "../../../src/base/json.ts";
import { random } from "../../random.ts";

test("parseWithLines agrees with JSON.parse on random documents and on damaged ones", () => {
  const seed = Number(process.env["SEED"] ?? 1);
  const next = random(seed);
  for (let round = 0; round < 2000; round++) {
    const text = JSON.stringify(randomValue(next, 0), null, round % 3);
    const at = Math.floor(next() * text.length);
    const damaged =
      text.slice(0, at) + '{}[]",:\\0 \n#'[Math.floor(next() * 12)] + text.slice(at + 1);
    for (const sample of [text, damaged]) {
      expect({ seed, sample, got: attempt(() => plainValue(parseWithLines(sample))) }).toEqual({
        seed,
        sample,
        got: attempt(() => JSON.parse(sample)),
      });
    }
  }
});

test("placeAt finds the place of a nested value, and of the deepest part that exists", () => {
  const node = parseWithLines('{\n "a": {\n  "b": [1,\n   2]\n }\n}', "f");
  expect(placeAt(node, ["a"])).toBe("f:2");
  expect(placeAt(node, ["a", "b", 1])).toBe("f:4");
  expect(placeAt(node, ["a", "c"])).toBe("f:2");
});

test("merged merges maps at every depth, replaces all else, and each part keeps its place", () => {
  const earlier = parseWithLines('{"a": {"b": 1,\n "l": [1, 2]},\n "o": {"x": 1}}', "f");
  const later = parseWithLines('{\n\n\n"a": {"l": [3],\n "n": {}}, "o": 4}', "g");
  const node = merged(earlier, later);
  expect(plainValue(node)).toEqual({ a: { b: 1, l: [3], n: {} }, o: 4 });
  expect(placeAt(node, ["a"])).toBe("f:1");
  expect(placeAt(node, ["a", "b"])).toBe("f:1");
  expect(placeAt(node, ["a", "l"])).toBe("g:4");
  expect(placeAt(node, ["a", "n"])).toBe("g:5");
  expect(placeAt(node, ["o", "x"])).toBe("g:5");
});

test.each([
  ['{"a": 1,\n"a": 2}', 2, '"a" is given twice, first in line 1'],
  ['{\n"a": 1,\n}', 3, 'a comma before "}"'],
  ['{"a": 1\n"b": "c"}', 2, 'a comma is missing before "b": "c"}'],
  ["[1 2]", 1, 'a comma is missing before "2]"'],
  ['{"a": 1;}', 1, 'expected "," or "}", found ";}"'],
  ['{\n# words\n"a": 1}', 2, "JSON knows no comments"],
  ['{"a": 1}\nx', 2, 'unexpected "x" after the end'],
  ['{"a"', 1, 'expected ":" after "a", found the end of the file'],
  ["[".repeat(100), 1, "nested deeper than 64 levels"],
])("parseWithLines tells the line and the cause of %j", (text, line, message) => {
  const error = attempt(
    () => parseWithLines(text),
    (e) => e,
  ) as JsonSyntaxError;
  expect(error).toBeInstanceOf(JsonSyntaxError);
  expect([error.line, error.message]).toEqual([line, message]);
});

test("plainValue keeps a key named __proto__ an ordinary one", () => {
  const value = plainValue(parseWithLines('{"__proto__": {"x": 1}}')) as { x?: number };
  expect(value.x).toBeUndefined();
  expect(Object.keys(value)).toEqual(["__proto__"]);
});

function attempt(run: () => unknown, failed: (e: unknown) => unknown = () => "failed"): unknown {
  try {
    return run();
  } catch (error) {
    return failed(error);
  }
}

function randomValue(random: () => number, depth: number): unknown {
  const pick = Math.floor(random() * (depth > 3 ? 5 : 7));
  const size = Math.floor(random() * 4);
  if (pick === 0) return null;
  if (pick === 1) return random() < 0.5;
  if (pick === 2) return Math.round((random() - 0.5) * 1e6) / 100;
  if (pick === 3) return random() * 1e300;
  if (pick === 4)
    return String.fromCharCode(...Array.from({ length: size * 3 }, () => random() * 300));
  if (pick === 5) return Array.from({ length: size }, () => randomValue(random, depth + 1));
  // Numbered, because an own key that is there twice is what we refuse and JSON.parse does not.
  const members = Array.from({ length: size }, (_, i) => [
    `${i}é"`,
    randomValue(random, depth + 1),
  ]);
  return Object.fromEntries(members);
}
