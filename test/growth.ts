// Computes the memory growth of long runs.

/** Growth from the first third of the warm samples to the last third; below 0: none. */
export function growthOf(samples: number[]): number {
  const warm = samples.slice(1);
  const third = Math.max(1, Math.floor(warm.length / 3));
  return Math.round(Math.min(...warm.slice(-third)) - Math.max(...warm.slice(0, third)));
}
