// Tests that each key of daemon.json refuses what it cannot mean, with file, line, key and what it may be.
import { describe, expect, test } from "bun:test";
import { idleKeys } from "../../../src/base/config_idle_keys.ts";
import { daemonKeys } from "../../../src/base/config_keys.ts";
import { nriKeys } from "../../../src/base/config_nri_keys.ts";
import { refusal, useConfigFolder } from "./config_file.ts";

useConfigFolder();

const keys = [...Object.values({ ...daemonKeys, ...nriKeys }), ...idleKeys];
const unitSeconds: Record<string, number> = { ms: 0.001, s: 1, m: 60, h: 3600 };

describe.each(keys.map(({ key, kind }) => [key, kind] as const))(
  "%s",
  (key, { shape, allowed }) => {
    test("refuses values of another type", () => {
      const isMap = shape === "map";
      const others = [null, [0], [{}], isMap ? "a" : { "a b": 1 }, isMap ? [] : -1.5];
      for (const value of others) expectRefused(value);
    });

    test("refuses the next values outside of its range", () => {
      for (const value of outside(allowed)) expectRefused(value);
    });

    function expectRefused(value: unknown): void {
      const told = refusal(`{\n\n"${key}": ${JSON.stringify(value)}}`);
      const start = `FILE:3: "${key}" must be ${allowed}, not `;
      expect([value, told]).toEqual([value, [expect.stringContaining(start)]]);
    }
  },
);

test("most keys with a range are found by their text", () => {
  expect(keys.filter(({ kind }) => outside(kind.allowed).length > 0).length).toBeGreaterThan(35);
});

/** Returns values just below and above the range that the text names. */
function outside(allowed: string): (number | string)[] {
  const [, min, max] = /^a whole number from (-?\d+) to (\d+)$/.exec(allowed) ?? [];
  if (min !== undefined) return [Number(min) - 1, Number(max) + 1, Number(min) + 0.5, min];
  const [, from, to] = /from (\d+m?[smh]) to (\d+[smh])$/.exec(allowed) ?? [];
  if (from === undefined) return allowed.startsWith("one of ") ? ["other"] : [];
  return [secondsOf(from) - 0.001, secondsOf(to!) + 0.001, "soon"];
}

function secondsOf(span: string): number {
  const [, count, unit] = /^(\d+)(\D+)$/.exec(span)!;
  return Number(count) * unitSeconds[unit!]!;
}
