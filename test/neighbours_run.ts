// Measures one bad neighbour of test/neighbours.ts: rounds of attack on a stage, and what they leave.
import { setTimeout as sleep } from "node:timers/promises";
import { messageOf } from "../src/base/errors.ts";
import { descriptorsIn, leaksBetween, type Snapshot, takeDescriptors } from "./leaks.ts";
import { median } from "./median.ts";
import type { Lag } from "./neighbours_lag.ts";
import type { Harm } from "./neighbours_quiet.ts";
import type { Attack, WholeStage } from "./neighbours_stage.ts";
import {
  bytesWritten,
  type Memory,
  memoryNow,
  MemoryPeaks,
  pipesHeld,
  pssMib,
  threadTimes,
} from "./neighbours_use.ts";

const leftMs = 20_000;

export type Plan = {
  seconds: number;
  rounds: number;
  /** How long the quiet pod is alone before it: the daemon's memory reaches what that takes. */
  warmMs: number;
  /** How long memory may take to come back. */
  settleMs: number;
};

export type Result = {
  name: string;
  item: string;
  /** Medians of the rounds, in ms. */
  lag: { p50: number; p999: number; max: number; bareP999: number; bareMax: number };
  failedAnswers: number;
  harm: Harm;
  /** In MiB; own without growth that came back. */
  memory: { before: Memory; peak: Memory; after: Memory; pssBefore: number; pssAfter: number };
  /** Share of a core that daemon and monitor took during the attack, and a thread that the attack's log made. */
  cpu: { daemon: number; monitor: number; logThread: number };
  /** Bytes that daemon and monitor wrote to disks during the attack. */
  written: number;
  descriptors: { before: number; after: number; left: string[] };
  /** Capacity of all pipes that daemon and monitor hold during the attack. */
  pipes: number;
  /** How long the daemon took to end; undefined: it was not ended. */
  stopMs?: number;
  faults: string[];
  notes: string[];
};

/** Attacks the stage, and waits until memory and descriptors are back. */
export async function measure(stage: WholeStage, attack: Attack, plan: Plan): Promise<Result> {
  const { pids, quiet, lag } = stage;
  const threadsBefore = new Set(threadTimes(pids).keys());
  const faults: string[] = [];
  const notes: string[] = [];
  const attacker = await attack.prepare(stage);
  const before = {
    memory: await usualMemory(stage, plan.warmMs),
    pss: pssMib(pids),
    descriptors: takeDescriptors(pids),
  };
  using peaks = new MemoryPeaks(stage);
  const use = useMeter(pids, threadsBefore);
  await lag.window();
  const lags: Lag[] = [];
  for (let round = 0; round < plan.rounds; round++) {
    await attacker
      .attack(plan.seconds)
      .catch((error: unknown) => faults.push(`attack: ${messageOf(error)}`));
    lags.push(await lag.window());
  }
  const used = use();
  const pipes = pipesHeld(pids);
  const found = await attacker.check?.();
  faults.push(...(found?.faults ?? []));
  notes.push(...(found?.notes ?? []));
  await attacker[Symbol.asyncDispose]();
  const after = await settled(stage, before.memory, plan.settleMs);
  const left = await leftDescriptors(before.descriptors, pids);
  return {
    name: attack.name,
    item: attack.item,
    lag: lagOf(lags),
    harm: quiet.harm,
    ...used,
    pipes,
    faults,
    notes,
    failedAnswers: lags.reduce((sum, { daemon }) => sum + daemon.failed, 0),
    memory: {
      before: before.memory,
      peak: peaks.peak,
      after,
      pssBefore: before.pss,
      pssAfter: pssMib(pids),
    },
    descriptors: {
      before: descriptorsIn(before.descriptors),
      after: descriptorsIn(takeDescriptors(pids)),
      left,
    },
  };
}

/** Returns the most that daemon and monitor take while only the quiet pod is there. */
async function usualMemory(stage: WholeStage, warmMs: number): Promise<Memory> {
  using peaks = new MemoryPeaks(stage);
  await sleep(warmMs);
  return peaks.peak;
}

/** Returns the descriptors that stay: some belong to the last answers, or wait for garbage collection. */
async function leftDescriptors(before: Snapshot, pids: number[]): Promise<string[]> {
  for (const end = performance.now() + leftMs; ;) {
    const left = leaksBetween(before, takeDescriptors(pids));
    if (left.length === 0 || performance.now() > end) return left;
    await sleep(500);
  }
}

function lagOf(lags: Lag[]): Result["lag"] {
  const of = (value: (lag: Lag) => number) => median(lags.map(value));
  return {
    p50: of(({ daemon, bare }) => daemon.p50 - bare.p50),
    p999: of(({ p999 }) => p999),
    max: of(({ max }) => max),
    bareP999: of(({ bare }) => bare.p999),
    bareMax: of(({ bare }) => bare.max),
  };
}

/** Returns what reads the processor time and the writes since now. */
function useMeter(pids: number[], known: Set<string>): () => Pick<Result, "cpu" | "written"> {
  const [start, times, bytes] = [performance.now(), threadTimes(pids), bytesWritten(pids)];
  return () => {
    const ms = performance.now() - start;
    const shares = [...threadTimes(pids)].map(([thread, end]) => {
      return { thread, share: (end - (times.get(thread) ?? 0)) / ms };
    });
    const of = (pid: number) =>
      shares
        .filter(({ thread }) => thread.startsWith(`${pid}/`))
        .reduce((sum, { share }) => sum + share, 0);
    const [daemon = 0, ...monitors] = pids.map(of);
    const others = shares.filter(
      ({ thread }) => !known.has(thread) && !thread.startsWith(`${pids[0]}/`),
    );
    return {
      cpu: {
        daemon,
        monitor: monitors.reduce((sum, share) => sum + share, 0),
        logThread: Math.max(0, ...others.map(({ share }) => share)),
      },
      written: bytesWritten(pids) - bytes,
    };
  };
}

/** What memory has come back to: below `nearMib` above what it was, or after the time. */
async function settled(stage: WholeStage, before: Memory, withinMs: number): Promise<Memory> {
  for (const end = performance.now() + withinMs; ;) {
    const now = memoryNow(stage);
    if (now.own - before.own < nearMib || performance.now() > end) return now;
    await sleep(500);
  }
}

export const nearMib = 10;
