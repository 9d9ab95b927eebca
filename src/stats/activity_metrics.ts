// Measures activities (base/activity.ts): how long those of each kind take, and how many fail.
import { observeActivities, type Activity, type ActivityKind } from "../base/activity.ts";
import { codeOf } from "../base/errors.ts";
import { newCounter, newHistogram } from "./own_metrics.ts";
import type { Counter, Family, Histogram } from "./prometheus.ts";

/** Waits for locks are not measured: their labels are unbounded. */
type Measured = Exclude<ActivityKind, "wait">;

export class ActivityMetrics implements Disposable {
  readonly #durations: Record<Measured, Histogram> = {
    call: newHistogram("isulad_call_duration_seconds"),
    step: newHistogram("isulad_step_duration_seconds"),
    cni: newHistogram("isulad_cni_plugin_duration_seconds"),
    nri: newHistogram("isulad_nri_call_duration_seconds"),
    monitor: newHistogram("isulad_monitor_call_duration_seconds"),
    store: newHistogram("isulad_store_write_duration_seconds"),
    pull: newHistogram("isulad_image_pull_phase_duration_seconds"),
    runtime: newHistogram("isulad_runtime_duration_seconds"),
  };
  readonly #calls = newCounter("isulad_calls_total");
  /** By kind, except calls, which are counted by code, and the runtime, of which only successes are reported here. */
  readonly #failures: Record<Exclude<Measured, "call" | "runtime">, Counter> = {
    step: newCounter("isulad_step_failures_total"),
    cni: newCounter("isulad_cni_plugin_failures_total"),
    nri: newCounter("isulad_nri_call_failures_total"),
    monitor: newCounter("isulad_monitor_call_failures_total"),
    store: newCounter("isulad_store_write_failures_total"),
    pull: newCounter("isulad_image_pull_phase_failures_total"),
  };
  readonly #pulledBytes = newCounter("isulad_image_pull_bytes_total");
  readonly #observing = observeActivities((...seen) => this.#ended(...seen));

  constructor() {
    this.#pulledBytes.add({}, 0); // exports 0 before the first pull
  }

  #ended({ kind, labels, beganMs, bytes }: Activity, endedMs: number, error?: unknown): void {
    if (kind === "wait") return;
    this.#durations[kind].observe(labels, (endedMs - beganMs) / 1000);
    if (kind === "pull" && bytes > 0) this.#pulledBytes.add({}, bytes);
    if (kind === "call") {
      this.#calls.add({ ...labels, code: error === undefined ? "OK" : codeOf(error) });
      return;
    }
    // A success exports 0, so that the first failure is an increase.
    if (kind !== "runtime") this.#failures[kind].add(labels, error === undefined ? 0 : 1);
  }

  families(): Family[] {
    const all = [...Object.values(this.#durations), ...Object.values(this.#failures)];
    return [...all, this.#calls, this.#pulledBytes].map((one) => one.family());
  }

  [Symbol.dispose](): void {
    this.#observing[Symbol.dispose]();
  }
}
