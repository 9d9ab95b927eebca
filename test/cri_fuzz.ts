// Fuzzes CRI: sends calls with hostile values, with a hostile registry, CNI plugin and OCI runtime around the
// daemon. `bun test/cri_fuzz.ts [--calls 200000] [--seed 1] [--round N [--verbose]] [--again]` calls each RPC
// of the .proto files; half of the calls are sent twice at once, a quarter is cancelled. After each round of
// 2,000 calls the daemon must answer, everything is removed, and nothing may hang, leak or grow. A problem is
// printed with its round, which `--round N` repeats alone. Progress is recorded in test/.cache/cri_fuzz.json;
// an interrupted run is resumed if executable and seed are the same.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";
import { runtime } from "../src/proto/messages.js";
import type { Answer, Caller, CallPlan } from "./fuzz/caller.ts";
import { buildGoDecoder } from "./fuzz/go_decoder.ts";
import { requestOf, type World } from "./fuzz/requests.ts";
import { Session } from "./fuzz/session.ts";
import { type Chance, chanceOf, pick } from "./fuzz/values.ts";
import { type Rpc, rpcs } from "./fuzz/wire.ts";
import { growthOf } from "./growth.ts";
import { messageOf } from "../src/base/errors.ts";
import { random } from "./random.ts";
import { resumed } from "./run_record.ts";

export type RoundPlan = {
  seed: number;
  round: number;
  calls: number;
  /** Called with each answer. */
  heard?: ((rpc: Rpc, answer: Answer) => void) | undefined;
};
type Counts = { [key: string]: number };
export type RoundResult = {
  round: number;
  calls: number;
  /** gRPC codes of the answers. */
  codes: Counts;
  /** RPC → number of OK answers. */
  succeeded: Counts;
  /** Requests that the guard (test/fuzz/guard.ts) did not send. */
  refused: number;
  hangs: number;
  problems: string[];
  /** Distinct errors INTERNAL and UNKNOWN, for review: some of them are bugs. */
  internal: string[];
  /** Daemon, then monitor. */
  pssKib: number[];
  ms: number;
};

const parallel = 24;
const problemsMax = 30;
/** Tolerates heap fluctuation; a leak of 100 bytes per call is 20 MiB in 200,000 calls. */
const growthKibMax = 16 * 1024;
/** Several times the longest deadline of registry, plugin and runtime. */
const hangMsDefault = 90_000;

/** Calls without a bounded duration, or with one that a mutated request sets. */
const lasting = [
  "GetContainerEvents",
  "StopContainer",
  "ExecSync",
  "CheckpointContainer",
  "Profile",
];

/** Draws when the client cancels, if at all. */
function planOf(rpc: Rpc, chance: Chance): CallPlan {
  const kind = chance(8);
  if (kind === 0) return { cancelMs: chance(2) === 0 ? chance(20) : chance(1_500) };
  if (kind === 1) return { deadlineMs: 1 + chance(chance(2) === 0 ? 10 : 1_000) };
  return lasting.includes(rpc.name) ? { cancelMs: 200 + chance(2_000) } : {};
}

type Sent = Omit<RoundResult, "round" | "calls" | "pssKib" | "ms">;

export type Target = {
  caller: Caller;
  world: World;
  /** Recreates the objects that requests removed. */
  replenish: () => Promise<void>;
  /** RPCs to call; a repeated one is called more often. */
  rpcs?: Rpc[];
};

/** RPCs that remove objects are called less often than those that need them. */
const removing = /^(Remove|Prune|StopPodSandbox)/;
const making = /^(RunPodSandbox|CreateContainer|StartContainer|ExecSync|PullImage)$/;
const everyRpc = rpcs.flatMap((rpc) => {
  const weight = removing.test(rpc.name) ? 1 : making.test(rpc.name) ? 10 : 4;
  return Array.from({ length: weight }, () => rpc);
});
const replenishEvery = 100;
/** The error of grpc-js for a request that is not a message. */
const deserializing = /Error deserializing request/;

/** Sends a round's calls; adds the objects that they create to the world. */
export async function sendCalls(
  { caller, world, replenish, rpcs: called = everyRpc }: Target,
  { seed, round, calls, heard }: RoundPlan,
): Promise<Sent> {
  const result: Sent = {
    codes: {},
    succeeded: {},
    refused: 0,
    hangs: 0,
    problems: [],
    internal: [],
  };
  const seen = new Set<string>();
  let next = 0;
  const one = async (index: number) => {
    const chance = chanceOf(random(seed * 1_000_003 + round * 100_003 + index));
    const rpc = pick(chance, called);
    const { bytes } = requestOf(rpc, world, chance, () => result.refused++);
    if (index % replenishEvery === 0) await replenish();
    if (chance(150) === 0) caller.drop();
    if (chance(100) === 0) caller.scribble(chance);
    const twice = chance(2) === 0 ? [planOf(rpc, chance)] : [];
    const plans = [planOf(rpc, chance), ...twice];
    next += twice.length;
    const answers = await Promise.all(plans.map((plan) => caller.call(rpc, bytes, plan, chance)));
    for (const answer of answers) {
      count(result.codes, answer.code);
      if (answer.code === "OK") count(result.succeeded, rpc.name);
      heard?.(rpc, answer);
      if (answer.isHung) result.hangs++;
      if (["INTERNAL", "UNKNOWN"].includes(answer.code)) {
        const text = `${answer.code} ${rpc.name}: ${answer.details}`;
        if (!seen.has(text) && !deserializing.test(text)) result.internal.push(text.slice(0, 400));
        seen.add(text);
      }
      for (const problem of problemsOf(rpc, answer)) {
        if (!seen.has(problem)) result.problems.push(`${problem}; request ${shown(bytes)}`);
        seen.add(problem);
      }
      remember(rpc, answer, world, chance);
    }
  };
  const worker = async () => {
    while (next < calls && result.problems.length < problemsMax) await one(next++);
  };
  await Promise.all(Array.from({ length: parallel }, worker));
  return result;
}

function count(counts: Counts, key: string, by = 1): void {
  counts[key] = (counts[key] ?? 0) + by;
}

function problemsOf(rpc: Rpc, { isHung, faults }: Answer): string[] {
  return [...(isHung ? ["no answer"] : []), ...faults].map((what) => `${rpc.name}: ${what}`);
}

function shown(bytes: Buffer): string {
  return bytes.length > 1_500 ? `of ${bytes.length} bytes` : bytes.toString("hex");
}

const { RunPodSandboxResponse, CreateContainerResponse } = runtime.v1;
const keptMax = 25;

/** Remembers created objects, so that later requests use them. */
function remember(rpc: Rpc, { code, messages }: Answer, world: World, chance: Chance): void {
  if (code !== "OK" || messages[0] === undefined) return;
  const keep = (ids: string[], id: string) => {
    if (ids.length < keptMax) ids.push(id);
    else ids[chance(ids.length)] = id;
  };
  if (rpc.name === "RunPodSandbox") {
    keep(world.pods, RunPodSandboxResponse.decode(messages[0]).pod_sandbox_id);
  }
  if (rpc.name === "CreateContainer") {
    keep(world.containers, CreateContainerResponse.decode(messages[0]).container_id);
  }
}

export async function oneRound(session: Session, plan: RoundPlan): Promise<RoundResult> {
  const start = performance.now();
  const chance = chanceOf(random(plan.seed * 7_919 + plan.round));
  await session.begin(chance);
  const sent = await sendCalls(session, plan);
  const problems = [...sent.problems, ...(await session.end())];
  const pssKib = session.pssKib();
  const ms = performance.now() - start;
  return { ...sent, round: plan.round, calls: plan.calls, problems, pssKib, ms };
}

function tellAnswer({ name }: Rpc, { code, details }: Answer): void {
  console.log(`${code} ${name}: ${JSON.stringify(details.slice(0, 300))}`);
}

type Run = Pick<RoundResult, "calls" | "hangs" | "problems" | "succeeded"> & {
  seed: number;
  rounds: number;
};

function tellRound({
  round,
  codes,
  succeeded,
  refused,
  hangs,
  problems,
  internal,
  pssKib,
  ms,
}: RoundResult): void {
  const counts = Object.entries(codes)
    .sort(([, a], [, b]) => b - a)
    .map(([code, count]) => `${count} ${code || "without an answer"}`);
  const mib = pssKib.map((kib) => (kib / 1024).toFixed(1)).join(" + ");
  console.log(
    `round ${round}: ${counts.join(", ")}; ${refused} kept back, ${hangs} hangs, ` +
      `${problems.length} problems, ${mib} MiB, ${(ms / 1000).toFixed(0)} s`,
  );
  const reached = Object.entries(succeeded).map(([rpc, times]) => `${rpc} ${times}`);
  console.log(`  OK: ${reached.join(", ")}`);
  for (const text of internal.slice(0, 10)) console.log(`  ${JSON.stringify(text)}`);
  for (const problem of problems) console.log(`  round ${round}: ${problem}`);
}

/**
 * Continues after a problem with a new daemon and a new memory baseline. A signal ends it after the round.
 */
async function fuzz(
  rounds: number[],
  plan: Omit<RoundPlan, "round">,
  done: (result: RoundResult) => void,
): Promise<number> {
  let grown = 0;
  const decode = buildGoDecoder();
  const stop = new AbortController();
  for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => stop.abort());
  for (let at = 0; at < rounds.length && !stop.signal.aborted;) {
    await using session = await Session.open({ hangMs: hangMsDefault, decode });
    const samples: number[] = [];
    for (let isSound = true; isSound && at < rounds.length && !stop.signal.aborted; at++) {
      const result = await oneRound(session, { ...plan, round: rounds[at]! }).catch((cause) => {
        throw new Error(`round ${rounds[at]} of seed ${plan.seed}: ${messageOf(cause)}`, { cause });
      });
      done(result);
      samples.push(result.pssKib.reduce((sum, one) => sum + one, 0));
      isSound = result.problems.length === 0;
    }
    grown = Math.max(grown, samples.length > 3 ? growthOf(samples) : 0);
  }
  return grown;
}

async function main(): Promise<number> {
  const options = {
    calls: { type: "string", default: "200000" },
    seed: { type: "string", default: "1" },
    round: { type: "string" },
    again: { type: "boolean", default: false },
    verbose: { type: "boolean", default: false },
  } as const;
  const { values } = parseArgs({ options });
  const heard = values.verbose ? tellAnswer : undefined;
  const plan = { seed: Number(values.seed), calls: 2_000, heard };
  if (values.round !== undefined) {
    const grown = await fuzz([Number(values.round)], plan, tellRound);
    return grown > growthKibMax ? 1 : 0;
  }
  const file = join(import.meta.dirname, ".cache/cri_fuzz.json");
  const fresh: Run = {
    seed: plan.seed,
    rounds: 0,
    calls: 0,
    hangs: 0,
    problems: [],
    succeeded: {},
  };
  const run = resumed(file, fresh, { again: values.again });
  const roundsMax = Math.ceil(Number(values.calls) / plan.calls);
  console.log(`seed ${plan.seed}, from round ${run.rounds}`);
  const rounds = Array.from({ length: roundsMax }, (_, i) => i).slice(run.rounds);
  const grown = await fuzz(rounds, plan, (result) => {
    tellRound(result);
    run.rounds = result.round + 1;
    run.calls += Object.values(result.codes).reduce((sum, one) => sum + one, 0);
    run.hangs += result.hangs;
    for (const [rpc, by] of Object.entries(result.succeeded)) count(run.succeeded, rpc, by);
    run.problems.push(...result.problems.map((problem) => `round ${result.round}: ${problem}`));
    writeFileSync(file, JSON.stringify(run, null, 2));
  });
  const never = rpcs.filter(({ name }) => run.succeeded[name] === undefined);
  console.log(`never OK: ${never.map(({ name }) => name).join(", ") || "none"}`);
  console.log(
    `seed ${run.seed}: ${run.calls} calls, ${run.hangs} hangs, ${run.problems.length} problems; ` +
      `memory ${grown} KiB more than after warming up`,
  );
  return run.problems.length > 0 || grown > growthKibMax ? 1 : 0;
}

if (import.meta.main) process.exitCode = await main();
