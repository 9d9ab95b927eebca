// Makes the table of test/neighbours.ts: a row for each bad neighbour, in Markdown.
import type { Result } from "./neighbours_run.ts";

type Row = Result & { broken: string[] };

const columns: [string, (row: Row) => string][] = [
  ["neighbour", ({ name, item }) => (item === "-" ? name : `${name} (${item})`)],
  ["lag p99.9, max in ms", ({ lag }) => `${round(lag.p999)}, ${round(lag.max)}`],
  ["bare p99.9, max", ({ lag }) => `${round(lag.bareP999)}, ${round(lag.bareMax)}`],
  [
    "probes, failed, late, max ms",
    ({ harm }) => `${harm.probes}, ${harm.failedProbes}, ${harm.late}, ${round(harm.probeMsMax)}`,
  ],
  ["streams, failed", ({ harm }) => `${harm.streams}, ${harm.failedStreams}`],
  ["echo max ms", ({ harm }) => round(harm.echoMsMax)],
  ["bytes, lost", ({ harm }) => `${harm.bytes}, ${harm.lostBytes}`],
  [
    "memory before, peak, after in MiB",
    ({ memory: { before, peak, after } }) =>
      [before, peak, after].map(({ own }) => round(own)).join(", "),
  ],
  ["RSS peak", ({ memory }) => round(memory.peak.rss)],
  ["PSS before, after", ({ memory }) => `${round(memory.pssBefore)}, ${round(memory.pssAfter)}`],
  ["helpers' peak", ({ memory }) => round(memory.peak.helpers)],
  ["descriptors before, after", ({ descriptors }) => `${descriptors.before}, ${descriptors.after}`],
  [
    "CPU daemon, monitor, its log in %",
    ({ cpu }) =>
      [cpu.daemon, cpu.monitor, cpu.logThread].map((share) => round(share * 100)).join(", "),
  ],
  ["written MiB", ({ written }) => round(written / (1 << 20))],
  ["pipes KiB", ({ pipes }) => round(pipes / 1024)],
  ["end ms", ({ stopMs }) => round(stopMs ?? Number.NaN)],
  [
    "verdict",
    ({ broken }) => (broken.length === 0 ? "held" : broken[0]!.replaceAll("|", "/").slice(0, 90)),
  ],
];

function round(value: number): string {
  return value.toFixed(0);
}

export function tableOf(rows: Row[]): string {
  const line = (cells: string[]) => `| ${cells.join(" | ")} |`;
  return [
    line(columns.map(([name]) => name)),
    line(columns.map(() => "---")),
    ...rows.map((row) => line(columns.map(([, cell]) => cell(row)))),
  ].join("\n");
}
