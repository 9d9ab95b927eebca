// Tests the fields of tar headers: numbers, times, names and pax records.
import { describe, expect, test } from "bun:test";
import {
  decimal,
  nameOf,
  number,
  pathOf,
  paxRecords,
  signed,
  text,
  timeFromNs,
  timeOf,
} from "../../../src/layer/tar_fields.ts";

const octal = (digits: string) => Buffer.from(digits.padEnd(12, "\0"), "latin1");
const binary = (hex: string) => Buffer.from(hex.padStart(24, "0"), "hex");

describe("number()", () => {
  test.each([
    ["octal digits", octal("0000755"), 0o755],
    ["digits with spaces around", octal("  755 "), 0o755],
    ["an empty field", octal(""), 0],
    ["GNU's binary form", binary("800000000000000200000000"), 2 ** 33],
  ])("parses %s", (_, field, value) => expect(number(field, 0, 12)).toBe(value));

  test.each([
    ["letters", octal("zzz"), "zzz"],
    ["the digit 8", octal("8"), '"8"'],
    ["a negative number", binary("fffffffffffffffffffffffb"), "negative"],
    ["more than 2^53", binary("800000000100000000000000"), "too large"],
  ])("refuses %s", (_, field, why) => expect(() => number(field, 0, 12)).toThrow(why));

  test("signed() accepts negative numbers", () => {
    expect(signed(binary("fffffffffffffffffffffffb"), 0, 12)).toBe(-5);
  });
});

test.each([
  ["12", true],
  ["", false],
  ["-1", false],
  ["1e9", false],
  ["9007199254740993", false],
])("decimal() of %p: valid is %p", (value, isValid) => {
  if (isValid) expect(decimal(value, "size")).toBe(Number(value));
  else expect(() => decimal(value, "size")).toThrow("size is");
});

describe("timeOf()", () => {
  test.each<[number | string, number, number]>([
    [5, 5, 0],
    ["100.5", 100, 500_000_000],
    ["100", 100, 0],
    ["1.1234567899", 1, 123_456_789],
    ["-3", -3, 0],
    ["-3.25", -4, 750_000_000],
    [-(2 ** 40), -(2 ** 31), 0],
    ["99999999999999999", 2 ** 34 - 2 ** 31 - 1, 0],
  ])("of %p is %d s and %d ns", (value, s, ns) => expect(timeOf(value)).toEqual({ s, ns }));

  test.each(["soon", "1e400", "", "."])("refuses %p", (value) => {
    expect(() => timeOf(value)).toThrow("the time");
  });
});

describe("timeFromNs()", () => {
  test.each([
    [1_500_000_000n, 1, 500_000_000],
    [0n, 0, 0],
    [-3_000_000_000n, -3, 0],
    [-1_500_000_000n, -2, 500_000_000], // before 1970
  ])("splits %d", (total, s, ns) => expect(timeFromNs(total)).toEqual({ s, ns }));
});

describe("names", () => {
  test("text() ends at a NUL byte, or with the field", () => {
    expect(text(Buffer.from("ab\0cd"))).toBe("ab");
    expect(text(Buffer.from("abcd"))).toBe("abcd");
  });

  test.each([
    ["ASCII", Buffer.from("plain")],
    ["UTF-8", Buffer.from("é😀")],
    ["other bytes", Buffer.from([0x61, 0xff, 0xc3, 0xa9, 0x80, 0x62])],
  ])("pathOf() restores the bytes of %s", (_, bytes) => {
    expect(Buffer.from(pathOf(nameOf(bytes)) as string)).toEqual(bytes);
  });
});

describe("paxRecords()", () => {
  test("yields keys and values, also with = and line ends in a value", () => {
    const records = [...paxRecords(Buffer.from("11 a=b=c\nd\n6 e=f\n"))];
    expect(records.map(([key, value]) => [key, value.toString()])).toEqual([
      ["a", "b=c\nd"],
      ["e", "f"],
    ]);
  });

  test.each([
    ["no space", "abc", "without a length"],
    ["a length that is not a number", "x a=b\n", "length"],
    ["a length beyond the end", "99 a=b\n", "length is wrong"],
    ["a length that is too short", "3 a=b\n", "length is wrong"],
    ["no =", "5 ab\n", "length is wrong"],
    ["= only in the next record", "5 ab\n6 a=b\n", "length is wrong"],
    ["no line end", "6 a=bc", "length is wrong"],
  ])("refuses a record with %s", (_, bytes, why) => {
    expect(() => [...paxRecords(Buffer.from(bytes))]).toThrow(why);
  });
});
