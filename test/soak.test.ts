// Runs the soak test (test/soak.ts) briefly with a fixed seed.
import { expect, test } from "bun:test";
import { isGuest } from "./expect.ts";
import { startDaemon } from "./harness.ts";
import { growthKib, type RoundResult, soak } from "./soak.ts";

// test/vm emulates the guest's processor.
const pods = isGuest ? 3 : 10;

test("three rounds of pods of every kind leave nothing behind", async () => {
  await using daemon = await startDaemon();
  const results: RoundResult[] = [];
  for await (const result of soak(daemon, { rounds: 3, pods, seed: 7 })) results.push(result);
  expect(results.flatMap((result) => result.leaks)).toEqual([]);
  expect(growthKib(results)).toBeLessThan(12 * 1024);
}, 600_000);
