// Checks what a bad neighbour did against the limits of test/neighbours.ts.
import { nearMib, type Result } from "./neighbours_run.ts";
import type { Attack } from "./neighbours_stage.ts";

export const limits = {
  /** The daemon's lag less that of the bare server, in ms: medians of the rounds. */
  lagP999Ms: 30,
  lagMaxMs: 100,
  /** Growth of daemon and monitor at the peak, and a minute later, in MiB. */
  memoryMib: 40,
  memoryLeftMib: nearMib,
  /** Share of a core that the thread of the attack's own log may take. */
  logThreadShare: 0.02,
  stopMs: 1_000,
};

/** Returns a line for each limit that is crossed. */
export function faultsOf(result: Result, { limits: own = {} }: Pick<Attack, "limits">): string[] {
  const { item, lag, memory, harm, cpu, descriptors } = result;
  const found = [...result.faults];
  const over = (what: string, value: number, limit: number, digits = 0) => {
    if (value > limit) found.push(`${what} ${value.toFixed(digits)}, at most ${limit}`);
  };
  over("lag p99.9 ms", lag.p999, limits.lagP999Ms);
  over("lag max ms", lag.max, own.lagMsMax ?? limits.lagMaxMs);
  const grown = memory.peak.own - memory.before.own;
  over("memory at the peak MiB", grown, own.memoryMib ?? limits.memoryMib);
  over("memory left MiB", memory.after.own - memory.before.own, limits.memoryLeftMib);
  // Of others, a thread that is new to the monitor serves their streams.
  if (item.startsWith("C"))
    over("CPU share of the log's thread", cpu.logThread, limits.logThreadShare, 3);
  over("failed answers", result.failedAnswers, 0);
  over("failed probes", harm.failedProbes, 0);
  over("failed streams", harm.failedStreams, 0);
  over("lost bytes", harm.lostBytes, 0);
  if (result.stopMs !== undefined) over("ms to end the daemon", result.stopMs, limits.stopMs);
  return [...found, ...descriptors.left.map((one) => `left ${one}`), ...harm.problems];
}
