// Tests the parsing of cgroup files.
import { expect, test } from "bun:test";
import { finiteLimit, parseKeyed } from "../../../src/node/cgroup_file.ts";

test("parseKeyed() finds whole keys and numbers only", () => {
  const stat = parseKeyed("a 1\nnot_b 2\nb 3\nc max\nd -4\ne 18446744073709551615");
  expect(["a", "b", "c", "d", "e", "not"].map(stat)).toEqual([
    1n,
    3n,
    undefined,
    undefined,
    18_446_744_073_709_551_615n,
    undefined,
  ]);
});

test("finiteLimit() treats v1's largest number as no limit", () => {
  expect(finiteLimit(9_223_372_036_854_771_712n)).toBeUndefined();
  expect(finiteLimit(4096n)).toBe(4096n);
});
