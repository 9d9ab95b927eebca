// Defines the daemon's own metrics by Prometheus' conventions: name, type, labels and meaning of each. The page
// docs/observability.md has the same list.
import { Counter, Histogram, type Family } from "./prometheus.ts";

export type OwnMetric = { type: Family["type"]; labels: readonly string[]; help: string };

function metric(type: Family["type"], labels: string, help: string): OwnMetric {
  return { type, labels: labels.split(" ").filter(Boolean), help };
}

/** A histogram of durations, and a counter of those that failed. */
function timed<Name extends string>(name: Name, labels: string, what: string) {
  return {
    [`${name}_duration_seconds`]: metric("histogram", labels, `Duration of ${what}`),
    [`${name}_failures_total`]: metric("counter", labels, `Failures of ${what}`),
  } as Record<`${Name}_duration_seconds` | `${Name}_failures_total`, OwnMetric>;
}

export const ownMetrics = {
  isulad_build_info: metric("gauge", "version commit", "Always 1; the labels name the build"),
  isulad_ready: metric("gauge", "condition", "1 while the condition of Status holds"),
  isulad_calls_total: metric("counter", "method code", "Answered calls by gRPC code"),
  isulad_call_duration_seconds: metric("histogram", "method", "Duration of answered calls"),
  isulad_calls_in_flight: metric("gauge", "method", "Calls that are not answered yet"),
  isulad_oldest_call_seconds: metric("gauge", "method", "Age of the oldest call in flight"),
  ...timed(
    "isulad_step",
    "step",
    "the steps of which calls and the start consist, such as cni-add",
  ),
  isulad_lock_waiters: metric("gauge", "", "Calls that wait for a lock"),
  isulad_queue_length: metric("gauge", "queue", "What waits in a queue"),
  isulad_queue_limit: metric("gauge", "queue", "The bound of a queue that has one"),
  isulad_trace_spans_dropped_total: metric("counter", "", "Spans that no trace collector has got"),
  isulad_loop_lag_seconds: metric(
    "histogram",
    "",
    "How late the daemon's event loop turned, while images were pulled",
  ),
  isulad_pods: metric("gauge", "state", "Pods by state"),
  isulad_containers: metric("gauge", "state", "Containers by state"),
  isulad_oom_kills_total: metric("counter", "", "Containers that ended OOMKilled"),
  isulad_kernel_budget_used: metric(
    "gauge",
    "budget",
    "Use of a kernel budget that all pods share",
  ),
  isulad_kernel_budget_limit: metric(
    "gauge",
    "budget",
    "Limit of a kernel budget that all pods share",
  ),
  isulad_logs_failing: metric("gauge", "errno", "Containers whose log cannot be written"),
  isulad_log_dropped_bytes_total: metric(
    "counter",
    "",
    "Output that logs which could not be written lack, since the monitor's start",
  ),
  isulad_monitor_restarts_total: metric("counter", "", "Monitors lost and replaced"),
  isulad_monitor_resident_memory_bytes: metric("gauge", "", "Resident memory of the monitor"),
  ...timed(
    "isulad_monitor_call",
    "call",
    "calls of the monitor; exec lasts until its process ends",
  ),
  isulad_runtime_duration_seconds: metric(
    "histogram",
    "operation",
    "Duration of create and start by the OCI runtime, of starts that succeeded",
  ),
  ...timed("isulad_cni_plugin", "command plugin", "a CNI plugin's runs"),
  isulad_nri_plugins: metric("gauge", "", "NRI plugins in service"),
  ...timed("isulad_nri_call", "plugin method", "calls of an NRI plugin"),
  ...timed("isulad_store_write", "kind", "writes of sandbox and container records"),
  isulad_images: metric("gauge", "", "Images"),
  isulad_image_bytes: metric("gauge", "", "Bytes of all layers, each counted once"),
  isulad_image_pulls_total: metric("counter", "code", "Image pulls by gRPC code"),
  isulad_image_pull_duration_seconds: metric("histogram", "", "Duration of image pulls"),
  isulad_image_pull_bytes_total: metric("counter", "", "Bytes received of layers"),
  ...timed(
    "isulad_image_pull_phase",
    "phase",
    "a pull's phases: resolve, verify, config; layer of each layer, and in it fetch and unpack, which overlap",
  ),
  process_cpu_seconds_total: metric("counter", "", "CPU time of the daemon"),
  process_resident_memory_bytes: metric("gauge", "", "Resident memory of the daemon"),
  process_virtual_memory_bytes: metric("gauge", "", "Address space of the daemon"),
  process_open_fds: metric("gauge", "", "Open descriptors of the daemon"),
  process_max_fds: metric("gauge", "", "Limit of open descriptors"),
  process_start_time_seconds: metric("gauge", "", "When the daemon started, since the epoch"),
};

export type MetricName = keyof typeof ownMetrics;

export function newCounter(name: MetricName): Counter {
  return new Counter(name, ownMetrics[name].help);
}

/** bounds: upper bounds of the buckets, in seconds. */
export function newHistogram(name: MetricName, bounds?: readonly number[]): Histogram {
  return new Histogram(name, ownMetrics[name].help, bounds);
}

/** A metric whose values are read when it is asked for. */
export function readings(name: MetricName, samples: Family["samples"]): Family {
  const { type, help } = ownMetrics[name];
  return { name, help, type, samples };
}

/** As readings(), of a metric without labels; undefined: it has no value now. */
export function reading(name: MetricName, value: number | bigint | undefined): Family {
  return readings(name, value === undefined ? [] : [{ labels: {}, value }]);
}
