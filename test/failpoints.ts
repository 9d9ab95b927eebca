// Every failpoint × {error, one second of delay, kill -9 of the daemon, kill -9 of the monitor}, each
// in a pod's whole life; afterwards everything can be stopped and removed and nothing is left. Prints
// the table: `bun test/failpoints.ts [--only REGEXP] [--again]`. What was done stands in
// test/.cache/failpoints.json; a run that was interrupted goes on, unless the executable is another.
import { mkdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";
import { stepNames } from "../src/base/steps.ts";
import { Bench } from "./failpoint_bench.ts";
import { executable } from "./harness.ts";

export const actions = ["error", "delay", "kill daemon", "kill monitor"] as const;
export type Action = (typeof actions)[number];
export type Row = { failpoint: string; action: Action };
export type Result = Row & {
  /** The process that reached it; undefined: none did. */
  hitBy: "daemon" | "monitor" | undefined;
  /** What the caller was told first, if any call failed. */
  told: string;
  /** What is wrong; empty: passed. */
  problems: string[];
  ms: number;
};

export function allRows(): Row[] {
  const failpoints = stepNames.flatMap((name) => [`before:${name}`, `after:${name}`]);
  return failpoints.flatMap((failpoint) => actions.map((action) => ({ failpoint, action })));
}

export function tableLine(result: Result): string {
  const { failpoint, action, hitBy, told, problems, ms } = result;
  const columns = [
    problems.length === 0 ? "ok  " : "FAIL",
    failpoint.padEnd(31),
    action.padEnd(12),
    (hitBy ?? "nobody").padEnd(7),
    `${(ms / 1000).toFixed(1)} s`.padStart(6),
    told.slice(0, 90),
  ];
  return [columns.join("  ").trimEnd(), ...problems.map((line) => `      ${line}`)].join("\n");
}

type Record = { executable: string; done: Result[] };

function readRecord(file: string, again: boolean): Record {
  const { size, mtimeMs } = statSync(executable);
  const fresh = { executable: `${size} ${mtimeMs}`, done: [] };
  if (again) return fresh;
  try {
    const record = JSON.parse(readFileSync(file, "utf8")) as Record;
    return record.executable === fresh.executable ? record : fresh;
  } catch {
    return fresh;
  }
}

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: { only: { type: "string", default: "" }, again: { type: "boolean", default: false } },
  });
  const folder = join(import.meta.dirname, ".cache");
  const file = join(folder, "failpoints.json");
  mkdirSync(folder, { recursive: true });
  const record = readRecord(file, values.again);
  const wanted = allRows().filter((row) =>
    new RegExp(values.only).test(`${row.failpoint} ${row.action}`),
  );
  await using bench = await Bench.open();
  const results: Result[] = [];
  for (const row of wanted) {
    const same = (one: Row) => one.failpoint === row.failpoint && one.action === row.action;
    let result = record.done.find((one) => same(one) && one.problems.length === 0);
    if (result === undefined) {
      result = await bench.row(row);
      record.done = [...record.done.filter((one) => !same(one)), result];
      writeFileSync(file, JSON.stringify(record, null, 2));
    }
    results.push(result);
    console.log(tableLine(result));
  }
  const failed = results.filter((result) => result.problems.length > 0).length;
  console.log(`${results.length} rows, ${failed} failed`);
  return failed > 0 ? 1 : 0;
}

if (import.meta.main) process.exitCode = await main();
