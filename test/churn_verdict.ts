// Compares the rounds of the churn (test/churn.ts): finds leaks, growth of memory and descriptors, slower calls.
import { growthOf } from "./growth.ts";
import { median } from "./median.ts";

export type Round = {
  pods: number;
  ms: number;
  /** What is left after the round, and what went wrong in it. */
  leaks: string[];
  problems: string[];
  /** Memory of the runtime: daemon and monitor, or daemon and shims. */
  pssKib: number;
  descriptors: number;
  /** CPU time that a pod took of daemon and monitor. */
  podCpuMs: number;
  /** Median of each call in ms. */
  calls: Record<string, number>;
  /** Time of a program that does nothing: other work on the machine slows it down as it does the calls. */
  yardstickMs: number;
};

/** Tolerates heap fluctuation: 10 KiB a pod in a run of 5,000 are 50 MiB. */
const growthKibMax = 12 * 1024;
const descriptorsMax = 40;
/** Of the last third to the first third. */
const slowerMax = 1.5;
const cpuMax = 1.2;
const roundsMin = 6;

/** Returns the medians of the first and the last third. */
function ends(figures: number[]): [number, number] {
  const third = Math.max(1, Math.floor(figures.length / 3));
  return [median(figures.slice(0, third)), median(figures.slice(-third))];
}

/** Returns how many times a figure of the last third is that of the first third; 1 for too few rounds. */
export function trend(figures: number[]): number {
  if (figures.length < roundsMin) return 1;
  const [first, last] = ends(figures);
  return last / first;
}

/** Returns how many times slower each call is at the end, relative to the yardstick. */
export function slowdowns(rounds: Round[]): Record<string, number> {
  const names = Object.keys(rounds[0]?.calls ?? {});
  const relative = (name: string) =>
    rounds.map(({ calls, yardstickMs }) => (calls[name] ?? 0) / yardstickMs);
  return Object.fromEntries(names.map((name) => [name, trend(relative(name))]));
}

/** Returns a line for each call: the median of its rounds, and how many times slower it is at the end. */
export function callLines(rounds: Round[]): string[] {
  const slower = slowdowns(rounds);
  const names = Object.keys(slower).toSorted();
  return names.map((name) => {
    const ms = median(rounds.map(({ calls }) => calls[name] ?? 0));
    const times = slower[name]!.toFixed(2);
    return `  ${name.padEnd(20)} ${ms.toFixed(1).padStart(8)} ms, end to begin ${times}`;
  });
}

/** Returns a table of the runtimes' figures, medians of the first and the last third of their rounds. */
export function comparison(runs: [runtime: string, Round[]][]): string[] {
  const row = (what: string, figure: (rounds: Round[]) => string) =>
    `| ${what} | ${runs.map(([, rounds]) => figure(rounds)).join(" | ")} |`;
  const both = (figures: number[], digits = 0) =>
    ends(figures)
      .map((figure) => figure.toFixed(digits))
      .join(" → ");
  const sum = (figures: number[]) => String(figures.reduce((a, b) => a + b, 0));
  const calls = Object.keys(runs[0]?.[1][0]?.calls ?? {}).toSorted();
  return [
    `| | ${runs.map(([runtime]) => runtime).join(" | ")} |`,
    `|${"---|".repeat(runs.length + 1)}`,
    row("pods", (rounds) => sum(rounds.map(({ pods }) => pods))),
    row("left over", (rounds) => sum(rounds.map(({ leaks }) => leaks.length))),
    row("memory (PSS), MiB", (rounds) => both(rounds.map(({ pssKib }) => pssKib / 1024))),
    row("descriptors", (rounds) => both(rounds.map(({ descriptors }) => descriptors))),
    row("CPU time of a pod, ms", (rounds) => both(rounds.map(({ podCpuMs }) => podCpuMs))),
    ...calls.map((name) =>
      row(`${name}, ms`, (rounds) =>
        both(
          rounds.map(({ calls }) => calls[name] ?? Number.NaN),
          1,
        ),
      ),
    ),
  ];
}

export function growthKib(rounds: Round[]): number {
  return rounds.length < roundsMin ? 0 : growthOf(rounds.map(({ pssKib }) => pssKib));
}

/** Returns a line for each fault; rounds: those of one daemon. */
export function faultsOf(rounds: Round[]): string[] {
  const faults = rounds.flatMap(({ leaks, problems }, index) =>
    [...leaks, ...problems].map((fault) => `round ${index}: ${fault}`),
  );
  const grown = growthKib(rounds);
  if (grown > growthKibMax) faults.push(`memory grew by ${grown} KiB`);
  const descriptors = rounds.map((round) => round.descriptors);
  const more = rounds.length < roundsMin ? 0 : growthOf(descriptors);
  if (more > descriptorsMax) faults.push(`${more} more descriptors`);
  const cpu = trend(rounds.map(({ podCpuMs }) => podCpuMs));
  if (cpu > cpuMax) faults.push(`a pod takes ${cpu.toFixed(2)} times the CPU time`);
  for (const [name, times] of Object.entries(slowdowns(rounds)))
    if (times > slowerMax) faults.push(`${name} takes ${times.toFixed(2)} times as long`);
  return faults;
}
