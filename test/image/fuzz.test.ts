// A short run of the fuzzer (test/image/fuzz.ts) with a seed of its own each time, which a failure prints.
import { expect, test } from "bun:test";
import { fuzzSeed } from "../random.ts";
import { fuzz } from "./fuzz.ts";

test("layers, streams, manifests and configs by chance: errors of ours, and nothing left", async () => {
  const { taken, refused } = await fuzz({ seed: fuzzSeed, rounds: 1500, layers: 120 });
  expect(taken).toBeGreaterThan(0);
  expect(refused).toBeGreaterThan(0);
}, 120_000);
