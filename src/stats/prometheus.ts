// Implements counters and histograms, and Prometheus' text format (version 0.0.4).

export type Labels = Record<string, string>;

/** One metric with all its samples. */
export type Family = {
  name: string;
  help: string;
  type: "counter" | "gauge" | "histogram";
  samples: { suffix?: string; labels: Labels; value: number | bigint }[];
};

/** Series of one metric: the daemon's own labels have some hundred values, but an NRI plugin chooses its name. */
export const seriesMax = 2_000;
const other = "other";

/** Returns a key for a set of labels; cheaper than JSON, since each call of a client needs two keys. */
function keyOf(labels: Labels): string {
  let key = "";
  for (const name in labels) key += `${name}=${labels[name]!.length}:${labels[name]}`;
  return key;
}

/** Returns the series of these labels; beyond seriesMax one whose labels all are "other" takes all new ones. */
function seriesOf<Series extends { labels: Labels }>(
  known: Map<string, Series>,
  labels: Labels,
  make: (labels: Labels) => Series,
): Series {
  const key = keyOf(labels);
  const found = known.get(key);
  if (found !== undefined) return found;
  const isOther = Object.values(labels).every((value) => value === other);
  if (known.size >= seriesMax && !isOther) {
    const others = Object.fromEntries(Object.keys(labels).map((name) => [name, other]));
    return seriesOf(known, others, make);
  }
  const made = make(labels);
  known.set(key, made);
  return made;
}

/** Counts by labels. */
export class Counter {
  readonly #name: string;
  readonly #help: string;
  readonly #counts = new Map<string, { labels: Labels; value: number }>();

  constructor(name: string, help: string) {
    this.#name = name;
    this.#help = help;
  }

  add(labels: Labels = {}, count = 1): void {
    seriesOf(this.#counts, labels, (own) => ({ labels: own, value: 0 })).value += count;
  }

  family(): Family {
    const samples = [...this.#counts.values()];
    return { name: this.#name, help: this.#help, type: "counter", samples };
  }
}

/** Upper bounds of the buckets in seconds, for durations from a list call to an image pull. */
const callBounds = [
  0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300,
];

type Series = { labels: Labels; counts: number[]; sum: number };

/** Distribution of durations by labels. */
export class Histogram {
  readonly #name: string;
  readonly #help: string;
  readonly #bounds: readonly number[];
  readonly #series = new Map<string, Series>();

  /** bounds: upper bounds of the buckets, in seconds. */
  constructor(name: string, help: string, bounds: readonly number[] = callBounds) {
    this.#name = name;
    this.#help = help;
    this.#bounds = bounds;
  }

  observe(labels: Labels, seconds: number): void {
    const series = seriesOf(this.#series, labels, (own) => {
      return { labels: own, counts: [...this.#bounds, Infinity].map(() => 0), sum: 0 };
    });
    const bucket = this.#bounds.findIndex((bound) => seconds <= bound);
    series.counts[bucket < 0 ? this.#bounds.length : bucket]!++;
    series.sum += seconds;
  }

  family(): Family {
    const samples = [...this.#series.values()].flatMap(({ labels, counts, sum }) => {
      let below = 0;
      const buckets = counts.map((count, index) => {
        below += count;
        const le = String(this.#bounds[index] ?? "+Inf");
        return { suffix: "_bucket", labels: { ...labels, le }, value: below };
      });
      return [
        ...buckets,
        { suffix: "_sum", labels, value: sum },
        { suffix: "_count", labels, value: below },
      ];
    });
    return { name: this.#name, help: this.#help, type: "histogram", samples };
  }
}

export function exposition(families: Family[]): string {
  const lines = families.flatMap(({ name, help, type, samples }) => [
    `# HELP ${name} ${help}`,
    `# TYPE ${name} ${type}`,
    ...samples.map(({ suffix = "", labels, value }) => `${name}${suffix}${text(labels)} ${value}`),
  ]);
  return `${lines.join("\n")}\n`;
}

function text(labels: Labels): string {
  const pairs = Object.entries(labels).map(([key, value]) => `${key}="${escaped(value)}"`);
  return pairs.length === 0 ? "" : `{${pairs.join(",")}}`;
}

function escaped(value: string): string {
  return value.replace(/[\\"\n]/g, (char) => (char === "\n" ? "\\n" : `\\${char}`));
}
