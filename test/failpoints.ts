// Runs every failpoint with {error, one second of delay, kill -9 of the daemon, kill -9 of the monitor}
// through a pod's whole life; afterwards everything must be stoppable and removable, and nothing may be left.
// Prints the table: `bun test/failpoints.ts [--shim PATH] [--only REGEXP] [--part 1/2] [--record FILE]
// [--again]`; with --shim, runc's shim at PATH runs the containers. Progress is recorded in
// test/.cache/failpoints.json; an interrupted run is resumed if the executable is the same. In a guest a row
// takes half a minute; there the record needs a folder that outlives the guest:
//   test/vm run --dir .:/src:overlay --dir test/.cache/a:/a -- sh -c 'cd /src && ISULAD_SLOW=1
//     ISULAD_TEST_TIMEOUT_MS=180000 ISULAD_CGROUP_DRIVER=systemd node_modules/.bin/bun
//     test/failpoints.ts --part 1/2 --record /a/failpoints.json'
import { writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";
import { stepNames } from "../src/base/failpoints.ts";
import { Bench } from "./failpoint_bench.ts";
import { resumed } from "./run_record.ts";

export const actions = ["error", "delay", "kill daemon", "kill monitor"] as const;
export type Action = (typeof actions)[number];
export type Row = { failpoint: string; action: Action };
export type Result = Row & {
  /** The process that reached the failpoint; undefined: none did. */
  hitBy: "daemon" | "monitor" | undefined;
  /** The first error of the calls, if any. */
  told: string;
  /** Empty: the row passed. */
  problems: string[];
  ms: number;
};

/** withShim: a shim runs the containers, which has steps of its own. */
export function allRows(withShim = false): Row[] {
  const names = stepNames.filter((name) => withShim || !name.startsWith("shim-"));
  const failpoints = names.flatMap((name) => [`before:${name}`, `after:${name}`]);
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

/** Parses "2/3", the second third of the rows. */
export function partOf(rows: Row[], text: string): Row[] {
  const [, part, parts] = (/^([1-9]\d*)\/([1-9]\d*)$/.exec(text) ?? []).map(Number);
  if (part === undefined || part > parts!) throw new Error(`--part is I/N, not ${text}`);
  const end = (index: number) => Math.round((rows.length * index) / parts!);
  return rows.slice(end(part - 1), end(part));
}

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      only: { type: "string", default: "" },
      part: { type: "string", default: "1/1" },
      record: { type: "string", default: join(import.meta.dirname, ".cache/failpoints.json") },
      again: { type: "boolean", default: false },
      shim: { type: "string" },
    },
  });
  const file = values.record;
  const record = resumed(file, { done: [] as Result[] }, values);
  const shim = values.shim === undefined ? undefined : resolve(values.shim);
  const wanted = partOf(allRows(shim !== undefined), values.part).filter((row) =>
    new RegExp(values.only).test(`${row.failpoint} ${row.action}`),
  );
  await using bench = await Bench.open({ shim });
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
