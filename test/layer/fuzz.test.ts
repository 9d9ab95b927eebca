// A short run of the fuzzer (test/layer/fuzz.ts). Each layer waits for the disk: few of them.
import { expect, test } from "bun:test";
import { fuzzSeed } from "../random.ts";
import { fuzz } from "./fuzz.ts";

test("layers, streams, manifests and configs by chance: errors of ours, and nothing left", async () => {
  const { taken, refused } = await fuzz({ seed: fuzzSeed, rounds: 1500, layers: 30 });
  expect(taken).toBeGreaterThan(0);
  expect(refused).toBeGreaterThan(0);
}, 120_000);
