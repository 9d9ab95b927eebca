// Tests that the daemon exports exactly the metrics of the table, which the documentation, the alert rules and the
// dashboard name, and that each of them follows Prometheus' conventions.
import { afterAll, describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { parse } from "yaml";
import { generatedMetrics, metricsPage } from "../../../docs/generate.ts";
import { activity, beginCall, endActivity, reportActivity } from "../../../src/base/activity.ts";
import { CriError } from "../../../src/base/errors.ts";
import type { Context } from "../../../src/cri/context.ts";
import { metricFamilies } from "../../../src/cri/daemon_metrics.ts";
import { LayerTimes } from "../../../src/layer/layer_times.ts";
import { Instruments } from "../../../src/stats/instruments.ts";
import { ownMetrics } from "../../../src/stats/own_metrics.ts";
import type { Family } from "../../../src/stats/prometheus.ts";

const instruments = new Instruments();
afterAll(() => instruments[Symbol.dispose]());

/** A daemon with one pod, whose monitor is this process. */
const context = {
  instruments,
  health: { problems: async () => [] },
  cni: { status: async () => ({ ready: false, reason: "", message: "no list" }) },
  handlers: new Map(),
  sandboxes: { list: () => [{ phase: { phase: "ready" } }], unflushed: 3 },
  containers: { list: () => [], unflushed: 0 },
  images: { list: () => [], usage: () => ({ bytes: 0n }) },
  monitor: {
    pid: process.pid,
    losses: 0,
    pending: 0,
    logs: { troubles: [{ errno: "ENOSPC" }, { errno: "ENOSPC" }, {}], droppedBytes: 9 },
  },
  nri: { plugins: () => [] },
  events: { subscribers: 0, backlog: 0 },
  streams: { clients: 0 },
} as unknown as Context;

/** The samples of a metric, as text. */
async function samplesOf(name: string): Promise<string[]> {
  const family = (await metricFamilies(context)).find((one) => one.name === name);
  return family!.samples.map(({ suffix = "", labels, value }) => {
    return `${suffix}${Object.values(labels).join(" ")} ${value}`;
  });
}

describe("the daemon's metrics", () => {
  test("are those of the table, with type, meaning and labels", async () => {
    endActivity(beginCall("Version"));
    await instruments.pull(Promise.resolve());
    const families = await metricFamilies(context);
    const shape = ({ name, type, help }: Family) => ({ name, type, help });
    const table = Object.entries(ownMetrics).map(([name, { type, help }]) => ({
      name,
      type,
      help,
    }));
    const byName = (a: { name: string }, b: { name: string }) => (a.name < b.name ? -1 : 1);
    expect(families.map(shape).sort(byName)).toEqual(table.sort(byName));
    for (const { name, samples } of families) {
      const known: readonly string[] = ownMetrics[name as keyof typeof ownMetrics].labels;
      for (const { labels } of samples) {
        expect(Object.keys(labels).filter((label) => label !== "le")).toEqual([...known]);
      }
    }
  });

  test("have names by the conventions: seconds and bytes, counters with _total", () => {
    for (const [name, { type, help }] of Object.entries(ownMetrics)) {
      expect(name).toMatch(/^(isulad|process)_[a-z_]+$/);
      expect([name, name.endsWith("_total")]).toEqual([name, type === "counter"]);
      if (type === "histogram") expect(name).toEndWith("_seconds");
      expect(help).not.toBe("");
    }
  });

  test("have a row each in docs/observability.md: else run `bun docs/generate.ts`", () => {
    const text = readFileSync(metricsPage, "utf8");
    expect(text).toBe(generatedMetrics(text));
  });

  test("measure each kind of activity, and count its failures from 0 on", async () => {
    const labels = { command: "ADD", plugin: "bridge" };
    await activity("cni", labels, () => sleep(15));
    expect(await samplesOf("isulad_cni_plugin_failures_total")).toEqual(["ADD bridge 0"]);
    const failed = activity("cni", labels, () => Promise.reject(new CriError("INTERNAL", "no")));
    await failed.catch(() => {});
    expect(await samplesOf("isulad_cni_plugin_failures_total")).toEqual(["ADD bridge 1"]);
    const durations = await samplesOf("isulad_cni_plugin_duration_seconds");
    expect(durations).toContain("_countADD bridge 2");
    const sum = durations.find((line) => line.startsWith("_sumADD bridge "))!;
    expect(Number(sum.split(" ").at(-1))).toBeGreaterThanOrEqual(0.014);
    for (const [kind, name] of [
      ["store", "isulad_store_write"],
      ["nri", "isulad_nri_call"],
      ["monitor", "isulad_monitor_call"],
      ["step", "isulad_step"],
    ] as const) {
      await activity(kind, { of: kind }, () => {});
      expect(await samplesOf(`${name}_failures_total`)).toEqual([`${kind} 0`]);
      expect(await samplesOf(`${name}_duration_seconds`)).toContain(`_count${kind} 1`);
    }
    reportActivity("runtime", { operation: "create" }, { beganMs: 0, endedMs: 20 });
    expect(await samplesOf("isulad_runtime_duration_seconds")).toContain("_sumcreate 0.02");
  });

  test("count the containers whose log cannot be written, by error", async () => {
    expect(await samplesOf("isulad_logs_failing")).toEqual(["ENOSPC 2"]);
    expect(await samplesOf("isulad_log_dropped_bytes_total")).toEqual([" 9"]);
  });

  test("count the bytes and phases of a pull", async () => {
    expect(await samplesOf("isulad_image_pull_bytes_total")).toEqual([" 0"]);
    const layer = new LayerTimes(4096);
    await sleep(5);
    layer.received(100);
    layer.received(4096);
    layer.report();
    expect(await samplesOf("isulad_image_pull_bytes_total")).toEqual([" 4096"]);
    const phases = await samplesOf("isulad_image_pull_phase_duration_seconds");
    expect(phases).toContain("_countfetch 1");
    expect(phases).toContain("_countunpack 1");
  });

  test("tell conditions, calls in flight and queues of the moment", async () => {
    expect(await samplesOf("isulad_ready")).toEqual(["runtime 1", "network 0"]);
    expect(await samplesOf("isulad_queue_length")).toContain("sandbox-records-to-copy 3");
    const call = beginCall("StopContainer");
    expect(await samplesOf("isulad_calls_in_flight")).toEqual(["StopContainer 1"]);
    await sleep(20);
    const [oldest] = await samplesOf("isulad_oldest_call_seconds");
    expect(Number(oldest!.split(" ")[1])).toBeGreaterThanOrEqual(0.015);
    endActivity(call);
    expect(await samplesOf("isulad_calls_in_flight")).toEqual([]);
  });
});

describe("docs/monitoring", () => {
  const folder = join(import.meta.dirname, "../../../docs/monitoring");
  const read = (name: string) => readFileSync(join(folder, name), "utf8");
  const { groups } = parse(read("alerts.yaml")) as {
    groups: { rules: { alert: string; expr: string; annotations: Record<string, string> }[] }[];
  };
  const rules = groups.flatMap((group) => group.rules);
  const { panels } = JSON.parse(read("dashboard.json")) as {
    panels: { title: string; targets: { expr: string }[] }[];
  };
  const { tests } = parse(read("alerts.test.yaml")) as {
    tests: {
      input_series: { series: string }[];
      alert_rule_test: { alertname: string; exp_alerts: unknown[] }[];
    }[];
  };

  /** The metrics that an expression names; those of a histogram with their suffixes. */
  function unknownIn(expression: string): string[] {
    const named = expression.match(/\b(?:isulad|process)_\w+/g) ?? [];
    return named.filter((name) => {
      const base = name.replace(/_(bucket|sum|count)$/, "");
      const { type } = ownMetrics[base as keyof typeof ownMetrics] ?? {};
      return type === undefined || (type === "histogram") === (base === name);
    });
  }

  test("names only metrics that exist, in rules, tests and panels", () => {
    const expressions = [
      ...rules.map(({ expr }) => expr),
      ...tests.flatMap((one) => one.input_series.map(({ series }) => series)),
      ...panels.flatMap(({ targets }) => targets.map(({ expr }) => expr)),
    ];
    expect(expressions.length).toBeGreaterThan(50);
    expect(expressions.flatMap(unknownIn)).toEqual([]);
    expect(unknownIn("rate(isulad_call_duration_seconds[5m]) + isulad_nothing")).toHaveLength(2);
  });

  test("uses only labels that the metric has", () => {
    for (const { expr } of rules) {
      for (const [, name, selector] of expr.matchAll(/\b((?:isulad|process)_\w+)\{([^}]*)\}/g)) {
        const base = name!.replace(/_bucket$/, "") as keyof typeof ownMetrics;
        const used = [...selector!.matchAll(/(\w+)(?:=~|!~|!=|=)"/g)].map((match) => match[1]!);
        const known = [...ownMetrics[base].labels, "job", "instance", "le"];
        expect([name, used.filter((label) => !known.includes(label))]).toEqual([name, []]);
      }
    }
  });

  test("has a test that shows each alert firing", () => {
    const firing = tests.flatMap(({ alert_rule_test: checks }) =>
      checks.filter(({ exp_alerts: alerts }) => alerts.length > 0).map((one) => one.alertname),
    );
    expect(firing.sort()).toEqual(rules.map(({ alert }) => alert).sort());
    for (const { annotations } of rules) {
      expect(Object.keys(annotations)).toEqual(["summary", "description"]);
    }
  });
});
