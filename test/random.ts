// Random numbers that can be had again: a test prints its seed.

/** mulberry32: numbers from 0 up to, but not, 1; the same for a seed everywhere. */
export function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

export const fuzzSeed = Number(process.env["ISULAD_SEED"] ?? Date.now() % 1_000_000);
export const fuzzRounds = Number(process.env["ISULAD_FUZZ_ROUNDS"] ?? 2_000);
