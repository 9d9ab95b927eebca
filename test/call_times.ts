// Measures calls: keeps their durations by name.
import { median } from "./median.ts";

/** Durations in ms by call. */
export type Times = Map<string, number[]>;

export function addTime(times: Times, name: string, ms: number): void {
  const all = times.get(name) ?? [];
  times.set(name, all);
  all.push(ms);
}

/** Counts a call that fails, too. */
export async function timed<T>(times: Times, name: string, call: () => Promise<T>): Promise<T> {
  const start = performance.now();
  try {
    return await call();
  } finally {
    addTime(times, name, performance.now() - start);
  }
}

export function medians(times: Times): Record<string, number> {
  return Object.fromEntries([...times].map(([name, all]) => [name, median(all)]));
}
