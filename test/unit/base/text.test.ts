// Tests text from outside: it is bounded in bytes, never cut amid a character, and always well-formed.
import { describe, expect, test } from "bun:test";
import { jsonText, jsonValue } from "../../../src/base/json.ts";
import { encodeMessage } from "../../../src/base/protobuf.ts";
import { clip, clipStart, printable, quoted, shorten, wellFormed } from "../../../src/base/text.ts";
import { runtime } from "../../../src/proto/messages.js";
import { fuzzSeed, random } from "../../random.ts";

const bytes = (text: string) => Buffer.byteLength(text);
const pieces = ["a", "é", "€", "\u{1F600}", "\uD800", "\uDFFF", "\0", "\n"];

function randomText(next: () => number): string {
  const length = Math.floor(next() * 60);
  return Array.from({ length }, () => pieces[Math.floor(next() * pieces.length)]).join("");
}

describe("clip", () => {
  test("keeps what fits and cuts between characters, in bytes", () => {
    expect(clip("€€€", 9)).toBe("€€€");
    expect(clip("€€€€", 9)).toBe("€€…");
    expect(clip("\u{1F600}\u{1F600}", 7)).toBe("\u{1F600}…");
    expect(clip("\u{1F600}\u{1F600}", 6)).toBe("…");
    expect(clip("a\uD800b", 10)).toBe("a\uFFFDb");
    expect(clipStart("\u{1F600}\u{1F600}", 7)).toBe("…\u{1F600}");
    expect(clipStart("ab€", 6)).toBe("ab€".slice(0, 3));
    expect(clipStart("abcdefgh", 7)).toBe("…efgh");
    expect(shorten("abcd".repeat(9), 15)).toBe("abcd […] abcd");
  });

  test(`is well-formed and within its bytes for any text (seed ${fuzzSeed})`, () => {
    const next = random(fuzzSeed);
    for (let round = 0; round < 5_000; round++) {
      const text = randomText(next);
      const bytesMax = 3 + Math.floor(next() * 120);
      const [head, tail] = [clip(text, bytesMax), clipStart(text, bytesMax)];
      for (const cut of [head, tail]) {
        expect(cut.isWellFormed()).toBe(true);
        expect(bytes(cut)).toBeLessThanOrEqual(bytesMax);
      }
      const short = shorten(text, bytesMax + 10);
      expect(short.isWellFormed()).toBe(true);
      expect(bytes(short)).toBeLessThanOrEqual(bytesMax + 10);
      const whole = text.toWellFormed();
      if (bytes(whole) <= bytesMax) expect([head, tail]).toEqual([whole, whole]);
      else {
        expect(whole.startsWith(head.slice(0, -1))).toBe(true);
        expect(whole.endsWith(tail.slice(1))).toBe(true);
      }
    }
  });

  test("quotes names with their escapes, and takes control characters out of messages", () => {
    expect(quoted("a\nb\uD800")).toBe(String.raw`"a\nb` + '\uFFFD"');
    expect(bytes(quoted("€".repeat(1_000)))).toBeLessThanOrEqual(202);
    expect(printable("a\r\nb\tc\0d\u001B[2Je\u009Bf\uD800")).toBe(
      "a\nb\tc\uFFFDd\uFFFD[2Je\uFFFDf\uFFFD",
    );
    expect(printable("a\u202Eb\u200Bc\u2028d\u{E0001}e é ü 容器 😀")).toBe(
      "a\uFFFDb\uFFFDc\uFFFDd\uFFFDe é ü 容器 😀",
    );
  });
});

describe("JSON", () => {
  test("of bigints keeps every digit, wherever they stand", () => {
    const value = { a: [2n ** 64n - 1n], b: { c: -1n }, d: "1", e: undefined };
    expect(jsonText(value)).toBe('{"a":[18446744073709551615],"b":{"c":-1},"d":"1"}');
    expect(jsonText(undefined)).toBe("null");
    expect(jsonText({ a: 1 }, 2)).toBe('{\n  "a": 1\n}');
  });

  test("with escapes of lone surrogates is read with U+FFFD, in keys too", () => {
    const read = (text: string) => jsonValue(text);
    expect(read(String.raw`"a\ud800b"`)).toBe("a\uFFFDb");
    expect(read(String.raw`"\ud83d\ude00"`)).toBe("\u{1F600}");
    expect(read(String.raw`"\ud83d\ud83d\ude00\ude00"`)).toBe("\uFFFD\u{1F600}\uFFFD");
    expect(read(String.raw`"\\ud800"`)).toBe(String.raw`\ud800`);
    expect(read(String.raw`"\\\ud800"`)).toBe("\\\uFFFD");
    expect(read(String.raw`"\ud83d\u0041"`)).toBe("\uFFFDA");
    expect(read(String.raw`{"\udc00":["\uD8ff"]}`)).toEqual({ "\uFFFD": ["\uFFFD"] });
    expect(() => read(String.raw`"\ud8"`)).toThrow(SyntaxError);
  });

  test(`is read as JSON.parse reads it, made well-formed (seed ${fuzzSeed})`, () => {
    const next = random(fuzzSeed);
    for (let round = 0; round < 5_000; round++) {
      const value = { [randomText(next)]: [randomText(next), "\\" + randomText(next)] };
      expect(jsonValue(JSON.stringify(value))).toEqual(wellFormed(value));
    }
  });
});

test("a message's strings are UTF-8, short ones and long ones, in maps and in parts", () => {
  for (const length of [1, 39, 40, 127, 128, 1_000]) {
    const text = "x".repeat(length - 1) + "\uD800";
    const message = { metadata: { name: text }, labels: { [text]: text }, id: text };
    const { PodSandbox } = runtime.v1;
    const read = PodSandbox.decode(encodeMessage(PodSandbox, message));
    const good = text.toWellFormed();
    expect(read.id).toBe(good);
    expect(read.metadata!.name).toBe(good);
    expect(read.labels).toEqual({ [good]: good });
  }
});
