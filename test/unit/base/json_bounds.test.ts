// Tests the bounds of JSON from outside: nothing is built of a text that exceeds one.
import { expect, test } from "bun:test";
import { messageOf } from "../../../src/base/errors.ts";
import { jsonValue, longJsonValue, type Reviver } from "../../../src/base/json.ts";
import {
  assertWithin,
  BoundsError,
  documentBounds,
  JsonScan,
  usualBounds,
} from "../../../src/base/json_bounds.ts";
import { random } from "../../random.ts";

const { itemsMax } = usualBounds;
const listOf = (count: number, item: string) => `[${Array(count).fill(item).join(",")}]`;

test.each([
  ["items", listOf(itemsMax + 1, "0"), "more than 16384 items"],
  ["members", `{${listOf(itemsMax + 1, '"a":0').slice(1, -1)}}`, "more than 16384 items"],
  ["empty objects", listOf(itemsMax / 2 + 1, "{}"), "more than 16384 items"],
  ["levels", "[".repeat(65) + "]".repeat(65), "deeper than 64 levels"],
  ["bytes", `"${"x".repeat(usualBounds.bytesMax)}"`, "longer than 1048576 bytes"],
  ["escapes", `"${"\\n".repeat((128 << 10) + 1)}"`, "more than 131072 escapes"],
  ["digits", "1".repeat(65), "a number of over 64 digits"],
])("a text of too many %s is refused before anything is built", async (_, text, message) => {
  let built = 0;
  const revive: Reviver = (_key, value) => {
    built++;
    return value;
  };
  expect(() => jsonValue(text, revive)).toThrow(message);
  expect(() => jsonValue(text, revive)).toThrow(BoundsError);
  const error = await longJsonValue(text, usualBounds, revive).catch((cause: unknown) => cause);
  expect(String(error)).toContain(message);
  expect(built).toBe(0);
});

test.each([
  ["items", listOf(itemsMax, "0")],
  ["levels", "[".repeat(64) + "]".repeat(64)],
  ["escapes", `"${"\\n".repeat(128 << 10)}"`],
  ["digits", `[${"1".repeat(64)}]`],
  ["marks in a string", `["${'\\",[{'.repeat(30_000)}"]`],
  ["backslashes before a quote", '["\\\\","\\\\\\"",{"a":"\\\\"}]'],
])("a text of as many %s as allowed is parsed", (_, text) => {
  expect(jsonValue(text)).toEqual(JSON.parse(text));
});

test("what is no JSON is left to the parser, whatever is cut off", () => {
  for (const text of ['"', '"\\', '{"a', "]]]]", '"\\"', ""]) {
    assertWithin(text, usualBounds);
    expect(() => jsonValue(text)).toThrow(SyntaxError);
  }
});

test("the scan counts as many items as the parser builds, of random texts", () => {
  const next = random(Number(process.env["SEED"] ?? 1));
  const valueOf = (depth: number): unknown => {
    const kind = Math.floor(next() * (depth > 4 ? 2 : 4));
    if (kind === 0) return '\\ " , [ { ] }'.slice(Math.floor(next() * 12));
    if (kind === 1) return Math.floor(next() * 1e6);
    const parts = Array.from({ length: Math.floor(next() * 5) }, () => valueOf(depth + 1));
    return kind === 2 ? parts : Object.fromEntries(parts.map((part, i) => [`"${i}\\`, part]));
  };
  // A list or object with n members has n - 1 commas and one bracket; an empty one has its bracket.
  const itemsOf = (value: unknown): number => {
    if (typeof value !== "object" || value === null) return 0;
    const parts = Object.values(value);
    return Math.max(1, parts.length) + parts.reduce((sum: number, part) => sum + itemsOf(part), 0);
  };
  for (let round = 0; round < 500; round++) {
    const value = valueOf(0);
    const text = JSON.stringify(value, null, round % 3);
    const bounds = { bytesMax: text.length, itemsMax: itemsOf(value) };
    assertWithin(text, bounds);
    if (bounds.itemsMax === 0) continue;
    const less = { ...bounds, itemsMax: bounds.itemsMax - 1 };
    expect(() => assertWithin(text, less)).toThrow(BoundsError);
  }
});

test("a long text is scanned in slices, between which others have their turn", async () => {
  const text = `${" ".repeat(documentBounds.bytesMax - 2)}{}`;
  let turns = 0;
  const timer = setInterval(() => turns++, 0);
  const wait = longJsonValue(text, documentBounds);
  const atOnce = performance.now();
  expect(await wait).toEqual({});
  const took = performance.now() - atOnce;
  clearInterval(timer);
  // A slice is 5 ms; on a fast machine one is enough.
  if (took > 15) expect(turns).toBeGreaterThan(0);
});

test("a text is scanned alike in whatever parts it arrives", () => {
  const items = Array.from({ length: 40 }, (_, index) => `"a\\"${index},[\\\\"`).join(",");
  const bytes = Buffer.from(`[${items},"ü\\u0000",{"b":[1,2]}]`);
  const counts = (itemsMax: number, partBytes: number) => {
    const scan = new JsonScan({ ...usualBounds, itemsMax });
    try {
      for (let at = 0; at < bytes.length; at += partBytes) {
        scan.push(bytes.subarray(at, at + partBytes));
      }
      return "allowed";
    } catch (error) {
      return messageOf(error);
    }
  };
  const needed = 45; // 41 commas of the list, three openings, one more comma
  for (let partBytes = 1; partBytes < 20; partBytes++) {
    expect(counts(needed, partBytes)).toBe("allowed");
    expect(counts(needed - 1, partBytes)).toContain("items");
  }
});
