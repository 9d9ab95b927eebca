// Kills the daemon, the monitor or both at random moments of a pod's life, also in the middle of a step,
// where no failpoint is (failpoints.ts). Afterwards everything must be stoppable and removable, and nothing
// may be left. `bun test/cuts.ts [--rounds 200] [--seed 1]` records progress in test/.cache/cuts.json; an
// interrupted run is resumed if executable and seed are the same.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";
import { Bench, type Cut, type CutResult, victims } from "./failpoint_bench.ts";
import { random } from "./random.ts";
import { resumed } from "./run_record.ts";

/** Some lives end before it. */
const shareMax = 1.1;

/** Draws the same cut for a seed and a round, wherever a run starts. */
export function cutOf(seed: number, round: number): Cut {
  const draw = random(seed * 1_000_003 + round);
  return { victim: victims[Math.floor(draw() * victims.length)]!, share: draw() * shareMax };
}

function line(round: number, { victim, share }: Cut, { told, problems, ms }: CutResult): string {
  const columns = [
    problems.length === 0 ? "ok  " : "FAIL",
    String(round).padStart(5),
    victim.padEnd(7),
    `at ${(share * 100).toFixed(1)} %`.padEnd(10),
    `${(ms / 1000).toFixed(1)} s`.padStart(6),
    told.slice(0, 90),
  ];
  return [columns.join("  ").trimEnd(), ...problems.map((problem) => `      ${problem}`)].join(
    "\n",
  );
}

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      rounds: { type: "string", default: "200" },
      seed: { type: "string", default: "1" },
    },
  });
  const file = join(import.meta.dirname, ".cache/cuts.json");
  const record = resumed(file, { seed: Number(values.seed), rounds: 0, failed: 0 });
  await using bench = await Bench.open();
  for (const end = record.rounds + Number(values.rounds); record.rounds < end; record.rounds++) {
    const cut = cutOf(record.seed, record.rounds);
    const result = await bench.cut(cut);
    if (result.problems.length > 0) record.failed++;
    console.log(line(record.rounds, cut, result));
    writeFileSync(file, JSON.stringify({ ...record, rounds: record.rounds + 1 }, null, 2));
  }
  console.log(
    `${record.rounds} cuts in total with this executable and seed, ${record.failed} failed`,
  );
  return record.failed > 0 ? 1 : 0;
}

if (import.meta.main) process.exitCode = await main();
