// Tests which soft limit of open files containers get, though the engine has raised the daemon's own.
import { expect, test } from "bun:test";
import { softBeforeEngine } from "../../../src/sys/open_files_limit.ts";

type Pair = [soft: number, hard: number];
const limit = ([soft, hard]: Pair) => ({ soft, hard });

test.each<[string, Pair, Pair | undefined, number]>([
  ["raised, under a service manager", [20_000, 20_000], [1_073_741_816, 1_073_741_816], 1_024],
  ["raised, under a shell with the same limits", [20_000, 20_000], [4_096, 20_000], 4_096],
  ["raised, under a program of the same engine", [20_000, 20_000], [20_000, 20_000], 1_024],
  ["raised, under a shell that lowered the hard limit", [20_000, 20_000], [512, 65_536], 1_024],
  ["raised as far as the engine goes", [1 << 20, 1 << 30], [1_024, 1 << 30], 1_024],
  ["more than the engine raises to", [1 << 21, 1 << 30], [1_024, 1 << 30], 1 << 21],
  ["not raised, by an engine that does not", [8_192, 20_000], [8_192, 20_000], 8_192],
  ["a hard limit below the usual soft one", [600, 600], [600, 600], 600],
  ["the parent has ended", [20_000, 20_000], undefined, 1_024],
])("%s", (_, own, parent, expected) => {
  const ofParent = parent === undefined ? undefined : limit(parent);
  expect(softBeforeEngine(limit(own), ofParent)).toBe(expected);
});
