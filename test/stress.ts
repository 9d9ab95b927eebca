// Stresses one daemon with all the work of a busy node at once, and compares the results byte by byte: execs,
// short containers and terminals, logs at full speed, streams, port-forwards, pulls, pods, cancelled calls,
// events, stats and lists; meanwhile kills, restarts, upgrades, slow runtimes and plugins
// (stress_disturb.ts). `bun test/stress.ts --minutes 10` runs all of it; counts run only the named loads,
// without disturbances: `--execs 20000 --loggers 20 --short 500 --terminals 500`, unless `--disturbances 8`
// is given. [--at-once 10] [--seed 1] [--kinds "daemon killed,monitor killed"] [--again]. Progress is
// recorded in test/.cache/stress.json; an interrupted run is resumed.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";
import { resumed } from "./run_record.ts";
import { countFaults } from "./stress_check.ts";
import { newTally, type Tally } from "./stress_calls.ts";
import { type Disturbance, disturbances } from "./stress_disturb.ts";
import { loadNames } from "./stress_loads.ts";
import { StressNode } from "./stress_node.ts";
import { Stress, type StressPlan, type StressRecord } from "./stress_run.ts";

const recordMs = 5_000;
/** Logging containers during a timed run. */
const loggersDefault = 6;
/**
 * The first signal ends the loads and removes everything, so that the run can be resumed; the second kills.
 */
const stopSignals = ["SIGINT", "SIGTERM"] as const;

function freshRecord(plan: StressPlan): StressRecord {
  const names = [...loadNames, "loggers", "disturbances"] as const;
  const done = Object.fromEntries(names.map((name) => [name, 0])) as StressRecord["done"];
  const { seed } = plan;
  return { seed, plan, done, minutesDone: 0, tally: newTally(), isOver: false };
}

/** Resumes the recorded run: completed items are not repeated. */
export async function stress(
  record: StressRecord,
  report: (line: string) => void = () => {},
): Promise<Tally> {
  await using node = await StressNode.open();
  const run = new Stress(node, record);
  const stop = () => run.stop();
  for (const signal of stopSignals) process.once(signal, stop);
  try {
    await run.run(report);
  } finally {
    for (const signal of stopSignals) process.off(signal, stop);
  }
  record.isOver = !run.wasStopped;
  return record.tally;
}

export function words({ tally, minutesDone, done }: StressRecord): string {
  const mib = (bytes: number) => (bytes / 2 ** 20).toFixed(1);
  const cuts = Object.entries(tally.disturbances).map(([name, count]) => `${count} × ${name}`);
  const kinds = Object.entries(tally.faults).map(([kind, { count }]) => `${count} ${kind}`);
  return [
    `${minutesDone.toFixed(1)} min: ${tally.execs} execs with ${mib(tally.execBytes)} MiB`,
    `${done.short} short, ${done.terminals} terminals, ${done.slow} slow, ${done.pods} pods, ${done.pulls} pulls`,
    `${done.loggers} logs, in all ${mib(tally.logBytes)} MiB of logs, ${tally.linesRepeated} lines twice`,
    `${done.streams + done.attaches + done.forwards} streams with ${mib(tally.streamBytes)} MiB`,
    `${tally.events} events, ${tally.exits} exits, ${done.cancels} cancelled`,
    `${tally.interrupted} calls interrupted, ${tally.startsRepeated} starts repeated`,
    ...(cuts.length > 0 ? [cuts.join(", ")] : []),
    kinds.length > 0 ? `FAULTS: ${kinds.join(", ")}` : "0 faults",
  ].join("; ");
}

const numberNames = [
  ...loadNames,
  "loggers",
  "disturbances",
  "minutes",
  "seed",
  "at-once",
] as const;

const allKinds = Object.keys(disturbances) as Disturbance[];

function kindsFrom(text: string): Disturbance[] {
  const found = allKinds.filter((kind) => text.split(",").includes(kind));
  if (found.length > 0) return found;
  throw new Error(`--kinds takes some of: ${allKinds.join(",")}`);
}

function planFrom(values: Partial<Record<string, string | boolean>>): StressPlan {
  const number = (name: (typeof numberNames)[number]) =>
    values[name] === undefined ? undefined : Number(values[name]);
  const counts = Object.fromEntries(loadNames.map((name) => [name, number(name) ?? 0]));
  const { kinds } = values;
  const byCount = Object.values(counts).some((count) => count > 0);
  return {
    seed: number("seed") ?? 1,
    minutes: number("minutes") ?? (byCount ? 0 : 5),
    counts: counts as StressPlan["counts"],
    loggers: number("loggers") ?? (byCount ? 0 : loggersDefault),
    atOnce: number("at-once") ?? 10,
    disturbances: number("disturbances") ?? 0,
    kinds: typeof kinds === "string" ? kindsFrom(kinds) : allKinds,
  };
}

function show(record: StressRecord): void {
  for (const [kind, { count, first }] of Object.entries(record.tally.faults)) {
    console.log(`${kind}: ${count}`);
    for (const one of first) console.log(`    ${one}`);
  }
  for (const [shape, count] of Object.entries(record.tally.warnings)) {
    console.log(`warning, ${count} times: ${shape}`);
  }
  console.log(words(record));
}

async function main(): Promise<number> {
  const options = Object.fromEntries(
    numberNames.map((name) => [name, { type: "string" as const }]),
  );
  const { values } = parseArgs({
    options: { ...options, kinds: { type: "string" }, again: { type: "boolean" } },
  });
  const plan = planFrom(values);
  const file = join(import.meta.dirname, ".cache/stress.json");
  const fresh = freshRecord(plan);
  let record = resumed(file, fresh, { again: values["again"] === true });
  const isSame = JSON.stringify(record.plan) === JSON.stringify(plan);
  if (record.isOver || !isSame) record = resumed(file, fresh, { again: true });
  if (record.minutesDone > 0)
    console.log(`resuming after ${record.minutesDone.toFixed(1)} minutes`);
  const write = () => writeFileSync(file, JSON.stringify(record, null, 2));
  const timer = setInterval(write, recordMs);
  try {
    await stress(record, (line) => console.log(line));
  } finally {
    clearInterval(timer);
    write();
  }
  show(record);
  return countFaults(record.tally.faults) === 0 ? 0 : 1;
}

/** Makes the plan of a run by counts. */
export function planOf(seed: number, more: Partial<Omit<StressPlan, "seed">>): StressRecord {
  const counts = Object.fromEntries(loadNames.map((name) => [name, 0])) as StressPlan["counts"];
  const plan = {
    seed,
    minutes: 0,
    loggers: 0,
    atOnce: 10,
    disturbances: 0,
    kinds: allKinds,
    ...more,
  };
  return freshRecord({ ...plan, counts: { ...counts, ...more.counts } });
}

if (import.meta.main) process.exitCode = await main();
