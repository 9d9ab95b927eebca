// Runs 50 probed pods for hours while others, the guests, come and go:
// `bun test/soak_probed.ts [--hours 1] [--pods 50] [--guests 5] [--again]`. Each round takes a minute, in which that
// many guests come. Memory and descriptors must not grow, no call may become slower, and nothing may be left of the
// pods that went; with `--guests 0` nothing under graph may change either. Progress is recorded in
// test/.cache/soak-probed.json: SIGINT ends a run after its round, and the next one goes on with a fresh daemon.
// Needs root and the built executable.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { asKubelet } from "./as_kubelet.ts";
import { medians, timed, type Times } from "./call_times.ts";
import { callLines, faultsOf, growthKib, type Round } from "./churn_verdict.ts";
import { cpuMs, yardstick } from "./cpu_time.ts";
import { bytesBetween, changedFiles, type DiskWrites, diskWrites } from "./disk_writes.ts";
import { type Daemon, startDaemon } from "./harness.ts";
import { descriptorsIn, pssKib, type Snapshot } from "./leaks.ts";
import { resumed } from "./run_record.ts";

type Load = {
  /** Pods that are held. */
  held: number;
  /** Pods that come and go in a round. */
  guests: number;
};
type Run = Load & {
  /** The rounds of each daemon: the run and its resumptions. */
  pieces: Round[][];
};

const roundMs = 60_000;

async function hold(daemon: Daemon, count: number): Promise<string[]> {
  const ids: string[] = [];
  for (let index = 0; index < count; index++) {
    const config = daemon.podConfig();
    ids.push(await daemon.run(await daemon.runPod(config), config, ["sleep", "1000000"]));
  }
  return ids;
}

/** Runs a pod from its start to its removal. */
async function comeAndGo(daemon: Daemon, times: Times): Promise<void> {
  const config = daemon.podConfig();
  const podId = await timed(times, "RunPodSandbox", () => daemon.runPod(config));
  await timed(times, "StartContainer", () => daemon.run(podId, config, ["sleep", "600"]));
  await timed(times, "RemovePodSandbox", () => daemon.removePod(podId));
}

/** times: those of the kubelet's calls in the round, which this empties. */
async function round(daemon: Daemon, guests: number, times: Times): Promise<Round> {
  times.clear();
  const begin = performance.now();
  const pids = daemon.scope.pids();
  const cpu = cpuMs(pids);
  const yardstickMs = yardstick();
  const until = (ms: number) => sleep(Math.max(0, begin + ms - performance.now()));
  for (let count = 0; count < guests; count++) {
    await until((count * roundMs) / guests);
    await comeAndGo(daemon, times);
  }
  await until(roundMs);
  const probes = times.get("ExecSync")?.length ?? 0;
  return {
    pods: guests,
    ms: performance.now() - begin,
    leaks: [], // found at the end: while containers are probed, processes come and go
    problems: probes === 0 ? ["no container was probed"] : [],
    pssKib: pids.reduce((sum, pid) => sum + pssKib(pid), 0),
    descriptors: descriptorsIn(daemon.snapshot()),
    podCpuMs: (cpuMs(pids) - cpu) / probes,
    calls: medians(times),
    yardstickMs: (yardstickMs + yardstick()) / 2,
  };
}

function report(rounds: Round[]): void {
  const mib = rounds.map((one) => one.pssKib / 1024);
  const [least, most] = [Math.min(...mib), Math.max(...mib)];
  console.log(
    `${rounds.length} minutes, memory ${mib[0]?.toFixed(0)} → ${mib.at(-1)?.toFixed(0)} MiB (${least.toFixed(0)} to ${most.toFixed(0)}, ` +
      `${growthKib(rounds)} KiB of growth), ${rounds[0]?.descriptors} → ${rounds.at(-1)?.descriptors} descriptors`,
  );
  for (const line of callLines(rounds)) console.log(line);
}

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      hours: { type: "string", default: "1" },
      pods: { type: "string", default: "50" },
      guests: { type: "string", default: "5" },
      again: { type: "boolean", default: false },
    },
  });
  const file = join(import.meta.dirname, ".cache/soak-probed.json");
  const load: Load = { held: Number(values.pods), guests: Number(values.guests) };
  const fresh: Run = { ...load, pieces: [] };
  const found = resumed(file, fresh, { again: values.again });
  const isSame = found.held === load.held && found.guests === load.guests;
  const record = isSame ? found : { ...found, ...fresh };
  const left = () => Number(values.hours) * 60 - record.pieces.flat().length;
  if (left() <= 0) record.pieces = [];
  const piece: Round[] = [];
  record.pieces.push(piece);
  await using daemon = await startDaemon({ config: { "log-level": "INFO" } });
  const ending = new AbortController();
  process.on("SIGINT", () => ending.abort());
  const ids = await hold(daemon, load.held);
  /** Taken after a round, since the first calls open what is kept. */
  let before: (Snapshot & { writes: DiskWrites }) | undefined;
  const times: Times = new Map();
  const over = new AbortController();
  const calls = asKubelet(daemon, { ids, signal: over.signal, times });
  while (left() > 0 && !ending.signal.aborted) {
    const one = await Promise.race([
      round(daemon, load.guests, times),
      calls.then(() => undefined),
    ]);
    if (one === undefined) break;
    piece.push(one);
    before ??= { ...daemon.snapshot(), writes: diskWrites(daemon) };
    const writes = diskWrites(daemon);
    const changed = load.guests === 0 ? changedFiles(before.writes, writes) : [];
    one.problems.push(...changed.map((path) => `${path} has changed`));
    writeFileSync(file, JSON.stringify(record));
    const figures = `${Math.round(one.pssKib / 1024)} MiB, ${one.descriptors} descriptors, ${one.podCpuMs.toFixed(1)} ms CPU a probe, ${bytesBetween(before.writes, writes)} bytes to disks`;
    console.log(`${new Date().toISOString()} minute ${piece.length}: ${figures}`);
  }
  over.abort();
  await calls;
  if (before !== undefined) {
    piece.at(-1)?.leaks.push(...(await daemon.leaksSince(before, 10_000)));
  }
  writeFileSync(file, JSON.stringify(record));
  await daemon.removeAllPods();
  for (const rounds of record.pieces) report(rounds);
  const faults = record.pieces.flatMap(faultsOf);
  for (const fault of faults) console.log(fault);
  return faults.length === 0 ? 0 : 1;
}

if (import.meta.main) process.exitCode = await main();
