// Runs the layer fuzzer (test/layer/fuzz.ts) briefly, with few whole layers since each waits for the disk.
import { expect, test } from "bun:test";
import { fuzzSeed } from "../random.ts";
import { fuzz } from "./fuzz.ts";

test("random layers, streams, manifests and configs give only expected errors and leave nothing", async () => {
  const { accepted, refused } = await fuzz({ seed: fuzzSeed, rounds: 1500, layers: 30 });
  expect(accepted).toBeGreaterThan(0);
  expect(refused).toBeGreaterThan(0);
}, 400_000);
