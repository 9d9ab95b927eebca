// Parses durations in Go's form, such as 2h30m.

/** Parses a duration like Go's time.ParseDuration, without a sign, into milliseconds; undefined if it is none. */
export function durationMs(text: string): number | undefined {
  const unitMs = { ns: 1e-6, us: 1e-3, µs: 1e-3, ms: 1, s: 1000, m: 60_000, h: 3_600_000 };
  if (!/^(?:0|(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[nuµm]?s|[mh]))+)$/.test(text)) return undefined;
  let sum = 0;
  for (const [, count, unit] of text.matchAll(/(?<![\d.])([\d.]+)([a-zµ]+)/g)) {
    sum += Number(count) * unitMs[unit as keyof typeof unitMs];
  }
  return sum;
}
