// Measures what each kind of bad neighbour does to a quiet pod: `bun test/neighbours.ts [--only NAME[,NAME]]
// [--seconds 10] [--rounds 3] [--settle 60] [--binary PATH] [--json FILE] [--containers 110] [--list] [--again]`. A fresh
// daemon with the quiet pod meets one after the other; lag is that of CRI Version, less that of a bare server of the
// same executable beside it. Exit code 1: a limit of test/neighbours_limits.ts is crossed. Results of the same
// executable are kept in test/.cache/neighbours.json, so that an interrupted run continues; SIGINT ends a run after its
// attack. Needs root and the built executable.
import { writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";
import { messageOf } from "../src/base/errors.ts";
import { executable } from "./harness.ts";
import { crowdAttacks, manyContainers } from "./neighbours_crowds.ts";
import { diskAttacks } from "./neighbours_disks.ts";
import { imageAttacks } from "./neighbours_images.ts";
import { faultsOf } from "./neighbours_limits.ts";
import { measure, type Plan, type Result } from "./neighbours_run.ts";
import { type Attack, openStage } from "./neighbours_stage.ts";
import { streamAttacks } from "./neighbours_streams.ts";
import { tableOf } from "./neighbours_table.ts";
import { resumed } from "./run_record.ts";

export const attacks: Attack[] = [
  ...crowdAttacks,
  ...streamAttacks,
  ...imageAttacks,
  ...diskAttacks,
];

type Done = Result & { broken: string[] };
type Run = { plan: Plan; done: Done[] };

/** Measures one attack on a daemon of its own. */
async function attackOnce(attack: Attack, plan: Plan, binary: string): Promise<Done> {
  await using stage = await openStage(binary);
  const result = await measure(stage, attack, plan);
  await stage.quiet.finish();
  const start = performance.now();
  await stage.daemon.stop();
  result.stopMs = performance.now() - start;
  return { ...result, broken: faultsOf(result, attack) };
}

function chosen(only: string | undefined, containers: string | undefined): Attack[] {
  const crowd = containers === undefined ? [] : [manyContainers(Number(containers))];
  const all = [...attacks, ...crowd];
  if (only === undefined) return all;
  return only.split(",").map((name) => {
    const found = all.find((attack) => attack.name === name || attack.item === name);
    if (found === undefined) throw new Error(`no attack is named ${name}: see --list`);
    return found;
  });
}

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      only: { type: "string" },
      seconds: { type: "string", default: "10" },
      rounds: { type: "string", default: "3" },
      binary: { type: "string", default: executable },
      settle: { type: "string", default: "60" },
      json: { type: "string" },
      containers: { type: "string" },
      list: { type: "boolean", default: false },
      again: { type: "boolean", default: false },
    },
  });
  const all = chosen(values.only, values.containers);
  if (values.list) {
    for (const { name, item, about } of all)
      console.log(`${item.padEnd(4)}${name.padEnd(24)}${about}`);
    return 0;
  }
  const plan = {
    seconds: Number(values.seconds),
    rounds: Number(values.rounds),
    warmMs: 5_000,
    settleMs: 1_000 * Number(values.settle),
  };
  const file = join(import.meta.dirname, ".cache/neighbours.json");
  const binary = resolve(values.binary);
  const fresh: Run = { plan, done: [] };
  const found = resumed(file, fresh, { again: values.again, program: binary });
  const run =
    JSON.stringify(found.plan) === JSON.stringify(plan) ? found : { ...found, plan, done: [] };
  let isInterrupted = false;
  process.once("SIGINT", () => (isInterrupted = true));
  for (const attack of all) {
    if (isInterrupted) break;
    if (run.done.some(({ name }) => name === attack.name)) continue;
    console.error(`${attack.name}: ${attack.about}`);
    const done = await attackOnce(attack, plan, binary).catch((error: unknown) => messageOf(error));
    if (typeof done === "string") {
      console.error(`  failed: ${done}`);
      process.exitCode = 1;
      continue;
    }
    run.done.push(done);
    writeFileSync(file, JSON.stringify(run));
    for (const fault of done.broken) console.error(`  ${fault}`);
  }
  const results = run.done.filter(({ name }) => all.some((attack) => attack.name === name));
  if (values.json !== undefined) writeFileSync(values.json, JSON.stringify(results, undefined, 1));
  console.log(tableOf(results));
  return results.some(({ broken }) => broken.length > 0) ? 1 : 0;
}

if (import.meta.main) process.exitCode = (await main()) || process.exitCode;
