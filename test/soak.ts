// Makes and removes pods repeatedly: `bun test/soak.ts [--rounds 10] [--pods 50] [--seed 1]`. After every
// round nothing may be left, and descriptors and memory must not grow. Progress is recorded in
// test/.cache/soak.json; an interrupted run is resumed at its round.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";
import { type Daemon, startDaemon } from "./harness.ts";
import { descriptorsIn, pssKib } from "./leaks.ts";
import { random } from "./random.ts";

export type SoakPlan = { rounds: number; pods: number; seed: number };
export type RoundResult = {
  round: number;
  pods: number;
  containers: number;
  ms: number;
  leaks: string[];
  /** Daemon, then monitor. */
  pssKib: number[];
  descriptors: number;
};

const parallel = 5;
/** Tolerates heap fluctuation; a leak of 100 KiB per pod is 5 MiB in a round of 50. */
const growthKibMax = 12 * 1024;

/** Runs one pod with random content and end. Returns the number of its containers. */
async function onePod(daemon: Daemon, draw: () => number): Promise<number> {
  const config = draw() < 0.2 ? daemon.hostPodConfig() : daemon.podConfig();
  const podId = await daemon.runPod(config);
  const count = 1 + Math.floor(draw() * 2);
  for (let index = 0; index < count; index++) {
    const kind = draw();
    if (kind < 0.2) {
      await daemon.output(podId, config, "seq 100; exit 3");
    } else if (kind < 0.3) {
      const id = await daemon.create(podId, config, ["/no/such/program"]);
      await daemon.client.StartContainer({ container_id: id }).catch(() => {});
    } else {
      const id = await daemon.run(podId, config, "echo up; sleep 600 & sleep 600");
      if (draw() < 0.5) await daemon.exec(id, "echo x; exit 1");
      if (draw() < 0.3) await daemon.client.ReopenContainerLog({ container_id: id });
      if (draw() < 0.3) await daemon.client.StopContainer({ container_id: id });
    }
  }
  if (draw() < 0.7) await daemon.client.StopPodSandbox({ pod_sandbox_id: podId });
  await daemon.client.RemovePodSandbox({ pod_sandbox_id: podId });
  return count;
}

export async function* soak(daemon: Daemon, plan: SoakPlan, from = 0): AsyncGenerator<RoundResult> {
  await onePod(daemon, random(0)); // What is made once and kept (chains of the packet filter) is made now.
  const before = daemon.snapshot();
  for (let round = from; round < plan.rounds; round++) {
    const start = performance.now();
    const draw = random(plan.seed * 1000 + round);
    let next = 0;
    let containers = 0;
    const worker = async () => {
      while (next++ < plan.pods) containers += await onePod(daemon, draw);
    };
    await Promise.all(Array.from({ length: parallel }, worker));
    const ms = performance.now() - start;
    const leaks = await daemon.leaksSince(before, 10_000);
    const pids = daemon.scope.pids();
    const descriptors = descriptorsIn(daemon.snapshot());
    yield { round, pods: plan.pods, containers, ms, leaks, pssKib: pids.map(pssKib), descriptors };
  }
}

/** Memory growth from the first warm round to the last, in KiB. */
export function growthKib(results: RoundResult[]): number {
  const total = (result: RoundResult) => result.pssKib.reduce((sum, one) => sum + one, 0);
  const warm = results.slice(Math.min(2, results.length - 1));
  return total(warm.at(-1)!) - total(warm[0]!);
}

type Record = { plan: SoakPlan; done: RoundResult[]; podsEver: number };

function readRecord(file: string, plan: SoakPlan): Record {
  try {
    const record = JSON.parse(readFileSync(file, "utf8")) as Record;
    const same = JSON.stringify(record.plan) === JSON.stringify(plan);
    if (same && record.done.length < plan.rounds) return record;
    return { plan, done: [], podsEver: record.podsEver };
  } catch {
    return { plan, done: [], podsEver: 0 };
  }
}

async function main(): Promise<number> {
  const options = {
    rounds: { type: "string", default: "10" },
    pods: { type: "string", default: "50" },
    seed: { type: "string", default: "1" },
  } as const;
  const { values } = parseArgs({ options });
  const plan = {
    rounds: Number(values.rounds),
    pods: Number(values.pods),
    seed: Number(values.seed),
  };
  const folder = join(import.meta.dirname, ".cache");
  const file = join(folder, "soak.json");
  mkdirSync(folder, { recursive: true });
  const record = readRecord(file, plan);
  if (record.done.length > 0) console.log(`resuming at round ${record.done.length}`);
  await using daemon = await startDaemon();
  const here: RoundResult[] = [];
  for await (const result of soak(daemon, plan, record.done.length)) {
    record.done.push(result);
    here.push(result);
    record.podsEver += result.pods;
    writeFileSync(file, JSON.stringify(record, null, 2));
    const mib = result.pssKib.map((kib) => (kib / 1024).toFixed(1)).join(" + ");
    console.log(
      `round ${result.round}: ${result.pods} pods, ${result.containers} containers, ` +
        `${(result.ms / 1000).toFixed(1)} s, ${mib} MiB, ${result.descriptors} descriptors, ` +
        `${result.leaks.length} leaks`,
    );
    for (const leak of result.leaks) console.log(`  ${leak}`);
  }
  const grown = growthKib(here);
  const leaks = record.done.reduce((sum, result) => sum + result.leaks.length, 0);
  console.log(
    `${record.done.length} rounds, ${leaks} leaks, memory ${grown} KiB more than after warming up; ` +
      `${record.podsEver} pods ever`,
  );
  return leaks > 0 || grown > growthKibMax ? 1 : 0;
}

if (import.meta.main) process.exitCode = await main();
