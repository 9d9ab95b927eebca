// Exports the daemon's own metrics in Prometheus' text format: its counters, and gauges of its present state.
import { activitiesUnderWay } from "../base/activity.ts";
import { locksInUse } from "../base/lock_states.ts";
import type { LogState } from "../monitor/protocol.ts";
import { reading, readings } from "../stats/own_metrics.ts";
import { exposition, type Family } from "../stats/prometheus.ts";
import { kernelBudgets } from "../sys/kernel_budgets.ts";
import { memoryOf } from "../sys/process.ts";
import type { Context } from "./context.ts";
import { networkCondition } from "./network_condition.ts";
import { queuesOf } from "./queues.ts";

export async function metricsText(context: Context): Promise<string> {
  return exposition(await metricFamilies(context));
}

export async function metricFamilies(context: Context): Promise<Family[]> {
  return [
    ...context.instruments.families(),
    await readyFamily(context),
    ...stateFamilies(context),
    ...callFamilies(),
    ...queueFamilies(context),
    ...budgetFamilies(),
    reading("isulad_trace_spans_dropped_total", context.tracing?.dropped ?? 0),
  ];
}

async function readyFamily(context: Context): Promise<Family> {
  const [problems, network] = await Promise.all([
    context.health.problems(),
    networkCondition(context),
  ]);
  const conditions = { runtime: problems.length === 0, network: network.status === true };
  const samples = Object.entries(conditions).map(([condition, holds]) => ({
    labels: { condition },
    value: holds ? 1 : 0,
  }));
  return readings("isulad_ready", samples);
}

function stateFamilies({ sandboxes, containers, images, monitor, nri }: Context): Family[] {
  const memory = monitor.pid === undefined ? undefined : memoryOf(monitor.pid);
  return [
    readings("isulad_pods", byPhase(sandboxes.list(), ["ready", "notready"])),
    readings("isulad_containers", byPhase(containers.list(), ["created", "running", "exited"])),
    reading("isulad_images", images.list().length),
    reading("isulad_image_bytes", images.usage().bytes),
    readings("isulad_logs_failing", failingLogs(monitor.logs)),
    reading("isulad_log_dropped_bytes_total", monitor.logs.droppedBytes),
    reading("isulad_monitor_restarts_total", monitor.losses),
    reading("isulad_monitor_resident_memory_bytes", memory?.resident),
    reading("isulad_nri_plugins", nri?.plugins().length),
  ];
}

function failingLogs({ troubles }: LogState): Family["samples"] {
  const counts = new Map<string, number>();
  for (const { errno } of troubles) {
    if (errno !== undefined) counts.set(errno, (counts.get(errno) ?? 0) + 1);
  }
  return [...counts].map(([errno, value]) => ({ labels: { errno }, value }));
}

function byPhase(records: { phase: { phase: string } }[], phases: string[]): Family["samples"] {
  return phases.map((state) => ({
    labels: { state },
    value: records.filter(({ phase }) => phase.phase === state).length,
  }));
}

function callFamilies(): Family[] {
  const nowMs = performance.now();
  const byMethod = new Map<string, { count: number; oldestMs: number }>();
  for (const { kind, labels, beganMs } of activitiesUnderWay()) {
    if (kind !== "call") continue;
    const { count, oldestMs } = byMethod.get(labels["method"]!) ?? { count: 0, oldestMs: 0 };
    const ageMs = Math.max(oldestMs, nowMs - beganMs);
    byMethod.set(labels["method"]!, { count: count + 1, oldestMs: ageMs });
  }
  const calls = [...byMethod].map(([method, figures]) => ({ labels: { method }, figures }));
  const inFlight = calls.map(({ labels, figures: { count: value } }) => ({ labels, value }));
  const oldest = calls.map(({ labels, figures }) => ({ labels, value: figures.oldestMs / 1000 }));
  const waiters = locksInUse().reduce((sum, { waiting }) => sum + waiting.size, 0);
  return [
    readings("isulad_calls_in_flight", inFlight),
    readings("isulad_oldest_call_seconds", oldest),
    reading("isulad_lock_waiters", waiters),
  ];
}

function budgetFamilies(): Family[] {
  const budgets = kernelBudgets();
  const samples = (of: "used" | "limit") =>
    budgets.map(({ budget, [of]: value }) => ({ labels: { budget }, value }));
  return [
    readings("isulad_kernel_budget_used", samples("used")),
    readings("isulad_kernel_budget_limit", samples("limit")),
  ];
}

function queueFamilies(context: Context): Family[] {
  const queues = queuesOf(context);
  const lengths = queues.map(({ queue, length: value }) => ({ labels: { queue }, value }));
  const limits = queues.flatMap(({ queue, max: value }) =>
    value === undefined ? [] : [{ labels: { queue }, value }],
  );
  return [readings("isulad_queue_length", lengths), readings("isulad_queue_limit", limits)];
}
