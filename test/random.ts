// Generates reproducible random numbers: tests print their seed.

/** mulberry32: numbers from 0 (included) to 1 (excluded), the same for a seed on any machine. */
export function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Fixed, so that the suite is reproducible; ISULAD_SEED sets another one. */
export const fuzzSeed = Number(process.env["ISULAD_SEED"] ?? 20_261_121);
export const fuzzRounds = Number(process.env["ISULAD_FUZZ_ROUNDS"] ?? 2_000);
