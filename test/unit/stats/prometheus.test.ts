// Tests counters and histograms in Prometheus's text format.
import { expect, test } from "bun:test";
import { Counter, exposition, Histogram, seriesMax } from "../../../src/stats/prometheus.ts";

test("exposition() writes counters by labels, escaped", () => {
  const counter = new Counter("made_total", "Things made");
  counter.add({ what: 'a "b" \\ \n c' });
  counter.add({ what: "d" }, 2);
  counter.add({ what: "d" });
  expect(exposition([counter.family()])).toBe(`# HELP made_total Things made
# TYPE made_total counter
made_total{what="a \\"b\\" \\\\ \\n c"} 1
made_total{what="d"} 3
`);
});

test("exposition() writes a histogram's buckets cumulatively", () => {
  const histogram = new Histogram("took_seconds", "How long");
  for (const seconds of [0.0001, 0.001, 0.2, 1000]) histogram.observe({ call: "x" }, seconds);
  const lines = exposition([histogram.family()]).split("\n");
  expect(lines.slice(0, 3)).toEqual([
    "# HELP took_seconds How long",
    "# TYPE took_seconds histogram",
    'took_seconds_bucket{call="x",le="0.001"} 2',
  ]);
  expect(lines).toContain('took_seconds_bucket{call="x",le="0.1"} 2');
  expect(lines).toContain('took_seconds_bucket{call="x",le="0.25"} 3');
  expect(lines.slice(-4)).toEqual([
    'took_seconds_bucket{call="x",le="+Inf"} 4',
    'took_seconds_sum{call="x"} 1000.2011',
    'took_seconds_count{call="x"} 4',
    "",
  ]);
});

test("plugins with ever new names make a bounded number of series", () => {
  const [counter, histogram] = [
    new Counter("made_total", "x"),
    new Histogram("took_seconds", "x", []),
  ];
  for (let i = 0; i < 2 * seriesMax; i++) {
    counter.add({ plugin: `10-${i}`, method: "Create" });
    histogram.observe({ plugin: `10-${i}`, method: "Create" }, 1);
  }
  counter.add({ plugin: "10-0", method: "Create" });
  const { samples } = counter.family();
  expect(samples).toHaveLength(seriesMax + 1);
  expect(samples[0]).toEqual({ labels: { plugin: "10-0", method: "Create" }, value: 2 });
  expect(samples.at(-1)).toEqual({
    labels: { plugin: "other", method: "other" },
    value: seriesMax,
  });
  const counts = histogram.family().samples.filter(({ suffix }) => suffix === "_count");
  expect(counts).toHaveLength(seriesMax + 1);
  expect(counts.at(-1)!.value).toBe(seriesMax);
});
