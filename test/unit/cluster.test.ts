// Tests how the cluster's steps read a kubelet's metrics.
import { expect, test } from "bun:test";
import { parseSeries } from "../cadvisor_check.ts";
import { quantileMs } from "../cluster_steps_crowd.ts";

const histogram = (counts: Record<string, number>) =>
  parseSeries(
    Object.entries(counts)
      .map(([le, count]) => `relist_bucket{le="${le}"} ${count}`)
      .join("\n"),
  );

test("quantileMs() returns the bound of the bucket that holds the quantile", () => {
  const series = histogram({ "0.005": 98, "0.01": 99, "0.5": 100, "+Inf": 100 });
  expect(quantileMs(series, "relist", 0.99)).toBe(10);
  expect(quantileMs(series, "relist", 0.995)).toBe(500);
});

test("quantileMs() returns Infinity for a quantile above the last bound, NaN without a histogram", () => {
  expect(quantileMs(histogram({ "0.5": 1, "+Inf": 9 }), "relist", 0.99)).toBe(Infinity);
  expect(quantileMs(histogram({ "0.5": 1 }), "other", 0.99)).toBeNaN();
});
