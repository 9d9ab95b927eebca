// Kills the daemon, the monitor, and both at once, while some containers write numbered lines and others end
// with every exit code. No container may die of it, no line may be lost, and no exit code may be wrong. `bun
// test/storm.ts [--daemon 50] [--monitor 50] [--both 20] [--writers 10] [--burst 40] [--codes 256] [--seed 1]
// [--shim]`; with --shim, the newest of runc's shims that test/shims has built runs the containers. The results of
// all runs add up in test/.cache/storm.json.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { codeOf, messageOf } from "../src/base/errors.ts";
import { toLong } from "../src/base/int64.ts";
import { runtime } from "../src/proto/messages.js";
import type { PodSandboxConfig } from "../src/proto/types.ts";
import { lineageOf } from "../src/sys/process.ts";
import { until } from "./expect.ts";
import { type Daemon, startDaemon } from "./harness.ts";
import { end } from "./host.ts";
import { random } from "./random.ts";
import { chosenRuncShim, runcHandler } from "./shim_programs.ts";

export type StormPlan = {
  daemon: number;
  monitor: number;
  both: number;
  writers: number;
  /** Lines per burst of a writer, every 20 ms. */
  burst: number;
  codes: number;
  seed: number;
};
export type Tally = {
  kills: Record<Victim, number>;
  lines: number;
  linesLost: number;
  linesRepeated: number;
  exits: number;
  wrongCodes: number;
  /** Exits with 255, reason Unknown and a message: the documented exception. */
  unknownCodes: number;
  deadContainers: number;
  /** Calls that failed with UNAVAILABLE, "try again". */
  callsRepeated: number;
  /** Descriptions of the faults. */
  problems: string[];
};
type Victim = "daemon" | "monitor" | "both";

/** Containers that end around one kill. */
const codesAtOnce = 4;

export function newTally(): Tally {
  return {
    kills: { daemon: 0, monitor: 0, both: 0 },
    lines: 0,
    linesLost: 0,
    linesRepeated: 0,
    exits: 0,
    wrongCodes: 0,
    unknownCodes: 0,
    deadContainers: 0,
    callsRepeated: 0,
    problems: [],
  };
}

/** Counts lost and repeated lines in a CRI log of "1", "2", … "END n". */
export function countLines(log: string, tally: Tally, who: string): void {
  const seen = new Map<number, number>();
  let last: number | undefined;
  let partial = "";
  for (const line of log.split("\n")) {
    const found = /^\S+ std(?:out|err) ([PF]) (.*)$/.exec(line);
    if (found === null) {
      if (line !== "") tally.problems.push(`${who}: not a log line: ${JSON.stringify(line)}`);
      continue;
    }
    partial += found[2]!;
    if (found[1] === "P") continue;
    const text = partial;
    partial = "";
    const end = /^END (\d+)$/.exec(text)?.[1];
    if (end !== undefined) last = Number(end);
    else if (/^\d+$/.test(text)) seen.set(Number(text), (seen.get(Number(text)) ?? 0) + 1);
    else tally.problems.push(`${who}: unexpected line: ${JSON.stringify(text)}`);
  }
  if (last === undefined) tally.problems.push(`${who}: its log has no end`);
  const highest = last ?? [...seen.keys()].reduce((high, one) => Math.max(high, one), 0);
  const lost: number[] = [];
  for (let number = 1; number <= highest; number++) if (!seen.has(number)) lost.push(number);
  tally.lines += highest;
  tally.linesLost += lost.length;
  tally.linesRepeated += [...seen.values()].reduce((sum, times) => sum + times - 1, 0);
  if (lost.length > 0) tally.problems.push(`${who}: lines lost: ${lost.slice(0, 10).join(" ")}`);
}

export type Ended = { exitCode: number; reason: string; message: string };

/** Checks that a container's exit code is reported as `code`. */
export function countExit(code: number, told: Ended, tally: Tally, who: string): void {
  const { exitCode, reason, message } = told;
  tally.exits++;
  if (exitCode === code && reason === (code === 0 ? "Completed" : "Error")) return;
  if (exitCode === 255 && reason === "Unknown" && message !== "") {
    tally.unknownCodes++;
    return;
  }
  tally.wrongCodes++;
  tally.problems.push(`${who}: exit ${code} reported as ${exitCode}, ${reason}: ${message}`);
}

/**
 * Writes 1, 2, …, in bursts every 20 ms; on SIGTERM, after the burst, END and the count. The file `progress` has
 * the number written last.
 */
export function writerScript(burst: number, progress = "/dev/null"): string {
  return `trap 'ended=yes' TERM
i=0; ended=; while [ -z "$ended" ]; do
  n=0; while [ $n -lt ${burst} ]; do n=$((n+1)); i=$((i+1)); echo $i; done
  echo $i > ${progress}
  usleep 20000
done
echo "END $i"`;
}

/** Exits about 0.2 to 1.2 s after its start: before, during, or after the kill. */
function ending(code: number, draw: () => number): string {
  return `usleep ${Math.floor(200_000 + draw() * 1_000_000)}; exit ${code}`;
}

class Storm {
  readonly #daemon: Daemon;
  readonly #plan: StormPlan;
  readonly #draw: () => number;
  readonly tally = newTally();
  readonly #writers: string[] = [];
  #pod: PodSandboxConfig = {};
  #podId = "";
  #nextCode = 0;

  constructor(daemon: Daemon, plan: StormPlan) {
    this.#daemon = daemon;
    this.#plan = plan;
    this.#draw = random(plan.seed);
  }

  async run(report: (line: string) => void): Promise<Tally> {
    const { writers, burst } = this.#plan;
    const script = writerScript(burst);
    this.#pod = this.#daemon.hostPodConfig();
    this.#podId = await this.#daemon.runPod(this.#pod);
    for (let index = 0; index < writers; index++) {
      this.#writers.push(await this.#daemon.run(this.#podId, this.#pod, script));
    }
    const victims = this.#victims();
    for (const [index, victim] of victims.entries()) {
      const left = victims.length - index;
      const codes = Math.ceil((this.#plan.codes - this.#nextCode) / left);
      await this.#kill(victim, codes);
      if (index % 10 === 9) report(`${index + 1} of ${victims.length} kills: ${this.#summary()}`);
    }
    await this.#finish();
    return this.tally;
  }

  #summary(): string {
    const { exits, wrongCodes, unknownCodes, deadContainers } = this.tally;
    return `${exits} exits, ${wrongCodes} wrong, ${unknownCodes} unknown, ${deadContainers} dead`;
  }

  /** All kills in random order. */
  #victims(): Victim[] {
    const { daemon, monitor, both } = this.#plan;
    const counts: [Victim, number][] = [
      ["daemon", daemon],
      ["monitor", monitor],
      ["both", both],
    ];
    const all = counts.flatMap(([victim, count]) => Array<Victim>(count).fill(victim));
    const order = all.map((victim) => ({ victim, at: this.#draw() }));
    return order.toSorted((a, b) => a.at - b.at).map(({ victim }) => victim);
  }

  /** A monitor that a killed daemon started may find the lock taken, and then ends. */
  async #expectOneMonitor(): Promise<void> {
    const isOne = () => this.#daemon.monitors().length === 1;
    await until("there is one monitor", isOne).catch((error: unknown) => {
      const found = this.#daemon.monitors().map(commandOf).join("; ");
      this.tally.problems.push(`${messageOf(error)}: ${found}`);
    });
  }

  /** Starts the containers that end around this kill, kills, and waits for their exit codes. */
  async #kill(victim: Victim, codes: number): Promise<void> {
    const daemon = this.#daemon;
    const ending: { id: string; code: number }[] = [];
    for (let count = 0; count < codes && this.#nextCode < this.#plan.codes; count++) {
      ending.push(await this.#startEnding(this.#nextCode++));
      if (ending.length % codesAtOnce === 0) await sleep(50);
    }
    await sleep(this.#draw() * 500);
    this.tally.kills[victim]++;
    if (victim === "monitor") await this.#expectOneMonitor();
    if (victim !== "daemon") for (const pid of daemon.monitors()) end(pid);
    if (victim !== "monitor") {
      await daemon.stop("SIGKILL");
      await sleep(this.#draw() * 300);
      await daemon.start();
    }
    for (const { id, code } of ending) await this.#checkExit(id, code, victim);
    await this.#checkWriters(victim);
  }

  async #startEnding(code: number): Promise<{ id: string; code: number }> {
    const id = await this.#daemon.run(this.#podId, this.#pod, ending(code, this.#draw));
    return { id, code };
  }

  async #checkExit(id: string, code: number, victim: Victim): Promise<void> {
    const who = `${id.slice(0, 12)} (${victim} killed)`;
    try {
      const { exitCode, reason, status } = await this.#daemon.exited(id);
      countExit(code, { exitCode, reason, message: status.message ?? "" }, this.tally, who);
      await this.#remove(id);
    } catch (error) {
      this.tally.problems.push(`${who}: ${String(error)}`);
      this.tally.wrongCodes++;
    }
  }

  /** Retries like a kubelet when the monitor ended during the call. */
  async #remove(id: string): Promise<void> {
    try {
      await this.#daemon.client.RemoveContainer({ container_id: id });
    } catch (error) {
      if (codeOf(error) !== "UNAVAILABLE") throw error;
      this.tally.callsRepeated++;
      await this.#daemon.client.RemoveContainer({ container_id: id });
    }
  }

  async #checkWriters(victim: Victim): Promise<void> {
    const { containers } = await this.#daemon.client.ListContainers({});
    const live = new Set(
      containers
        .filter(({ state }) => state === runtime.v1.ContainerState.CONTAINER_RUNNING)
        .map(({ id }) => id),
    );
    for (const id of this.#writers) {
      if (live.has(id)) continue;
      this.#writers.splice(this.#writers.indexOf(id), 1);
      this.tally.deadContainers++;
      this.tally.problems.push(`writer ${id.slice(0, 12)} is dead (${victim} killed)`);
    }
  }

  async #finish(): Promise<void> {
    await sleep(500);
    const stops = this.#writers.map(async (id) => {
      await this.#daemon.client.StopContainer({ container_id: id, timeout: toLong(20) });
      const { exitCode, reason, status } = await this.#daemon.exited(id);
      const who = `writer ${id.slice(0, 12)}`;
      countExit(0, { exitCode, reason, message: status.message ?? "" }, this.tally, who);
      countLines(readFileSync(status.log_path!, "utf8"), this.tally, who);
    });
    await Promise.all(stops);
    await this.#daemon.removePod(this.#podId);
  }
}

export function storm(
  daemon: Daemon,
  plan: StormPlan,
  report: (line: string) => void = () => {},
): Promise<Tally> {
  return new Storm(daemon, plan).run(report);
}

export function isClean(tally: Tally): boolean {
  const { linesLost, wrongCodes, deadContainers, problems } = tally;
  return linesLost + wrongCodes + deadContainers + problems.length === 0;
}

function words(tally: Tally): string {
  const { kills, lines, linesLost, linesRepeated, exits, wrongCodes, unknownCodes } = tally;
  return [
    `kills: daemon ${kills.daemon}, monitor ${kills.monitor}, both ${kills.both}`,
    `${lines} lines: ${linesLost} lost, ${linesRepeated} repeated`,
    `${exits} exits: ${wrongCodes} wrong, ${unknownCodes} unknown`,
    `${tally.deadContainers} containers dead, ${tally.callsRepeated} calls repeated`,
  ].join("; ");
}

function addToRecord(tally: Tally): string {
  const folder = join(import.meta.dirname, ".cache");
  const file = join(folder, "storm.json");
  mkdirSync(folder, { recursive: true });
  let runs: Tally[] = [];
  try {
    runs = JSON.parse(readFileSync(file, "utf8")) as Tally[];
  } catch {
    // There is no record before the first run.
  }
  runs.push(tally);
  writeFileSync(file, JSON.stringify(runs, null, 2));
  return `${runs.length} runs ever, ${runs.filter(isClean).length} clean`;
}

/** Describes a process with its parent and command line. */
function commandOf(pid: number): string {
  try {
    const command = readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ");
    return `${pid} of ${lineageOf(pid)?.parent}: ${command.trim()}`;
  } catch {
    return `${pid}, which has ended`;
  }
}

async function main(): Promise<number> {
  const numbers = {
    daemon: 50,
    monitor: 50,
    both: 20,
    writers: 10,
    burst: 40,
    codes: 256,
    seed: 1,
  };
  const options = Object.fromEntries(
    Object.entries(numbers).map(([key, value]) => [
      key,
      { type: "string" as const, default: String(value) },
    ]),
  );
  const shim = { type: "boolean" as const, default: false };
  const { values } = parseArgs({ options: { ...options, shim } });
  const given = values as Record<string, string | boolean | undefined>;
  const plan = Object.fromEntries(
    Object.keys(numbers).map((key) => [key, Number(given[key])]),
  ) as StormPlan;
  const runtimes = values.shim ? { shim: runcHandler(chosenRuncShim()!) } : {};
  const config = values.shim ? { runtimes, "default-runtime": "shim" } : {};
  await using daemon = await startDaemon({ config });
  const tally = await storm(daemon, plan, (line) => console.log(line));
  for (const problem of tally.problems) console.log(`  ${problem}`);
  console.log(words(tally));
  console.log(addToRecord(tally));
  return isClean(tally) ? 0 : 1;
}

if (import.meta.main) process.exitCode = await main();
