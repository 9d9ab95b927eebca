// Tests the verdict on long churns: each planted fault is found, and a steady run has none.
import { expect, test } from "bun:test";
import { comparison, faultsOf, type Round } from "../churn_verdict.ts";

const steady: Round = {
  pods: 50,
  ms: 20_000,
  leaks: [],
  problems: [],
  pssKib: 120_000,
  descriptors: 50,
  podCpuMs: 120,
  calls: { RunPodSandbox: 200, ExecSync: 90 },
  yardstickMs: 2,
};

/** Twelve rounds, changed by a function of their number. */
function rounds(change: (index: number) => Partial<Round> = () => ({})): Round[] {
  return Array.from({ length: 12 }, (_, index) => ({ ...steady, ...change(index) }));
}

test("faultsOf() finds nothing in a steady run", () => {
  expect(faultsOf(rounds())).toEqual([]);
});

test("faultsOf() finds nothing when the whole machine becomes slower", () => {
  const slower = (index: number) => ({
    yardstickMs: 2 + index,
    calls: { RunPodSandbox: 100 * (2 + index), ExecSync: 45 * (2 + index) },
  });
  expect(faultsOf(rounds(slower))).toEqual([]);
});

test.each<[string, (index: number) => Partial<Round>, string]>([
  ["a leak", (i) => (i === 7 ? { leaks: ["mount: /x"] } : {}), "round 7: mount: /x"],
  ["a lost line", (i) => (i === 3 ? { problems: ["line 4"] } : {}), "round 3: line 4"],
  ["memory", (i) => ({ pssKib: 120_000 + i * 3_000 }), "memory grew by 18000 KiB"],
  ["descriptors", (i) => ({ descriptors: 50 + i * 10 }), "60 more descriptors"],
  ["CPU time", (i) => ({ podCpuMs: 120 + i * 5 }), "a pod takes 1.31 times the CPU time"],
  [
    "a slower call",
    (i) => ({ calls: { RunPodSandbox: 200, ExecSync: 90 + i * 9 } }),
    "ExecSync takes 1.67 times as long",
  ],
])("faultsOf() finds %s", (_, change, fault) => {
  expect(faultsOf(rounds(change))).toEqual([fault]);
});

test("comparison() has the medians of the first and the last third of each runtime's rounds", () => {
  const slower = (index: number) => ({ calls: { RunPodSandbox: 200 + index, ExecSync: 90 } });
  const leaky = (index: number) => ({
    leaks: index === 3 ? ["mount: /x"] : [],
    pssKib: index * 1024,
  });
  const lines = comparison([
    ["one", rounds(slower)],
    ["other", rounds(leaky)],
  ]);
  expect(lines).toEqual([
    "| | one | other |",
    "|---|---|---|",
    "| pods | 600 | 600 |",
    "| left over | 0 | 1 |",
    "| memory (PSS), MiB | 117 → 117 | 2 → 10 |",
    "| descriptors | 50 → 50 | 50 → 50 |",
    "| CPU time of a pod, ms | 120 → 120 | 120 → 120 |",
    "| ExecSync, ms | 90.0 → 90.0 | 90.0 → 90.0 |",
    "| RunPodSandbox, ms | 202.0 → 210.0 | 200.0 → 200.0 |",
  ]);
});
