// Traces the daemon's calls: each sampled activity becomes a span for an OpenTelemetry collector. Loaded only when
// OpenTelemetry's variables name one.
import { observeActivities } from "../base/activity.ts";
import type { Log } from "../base/log.ts";
import { SpanExporter } from "./exporter.ts";
import { Spans } from "./spans.ts";
import { traceSettings } from "./trace_settings.ts";

export type Tracing = AsyncDisposable & {
  /** Spans that wait, and their bound. */
  readonly length: number;
  readonly max: number;
  readonly dropped: number;
};

/** env: OpenTelemetry's variables among others. undefined: they turn tracing off, or are unusable. */
export function openTracing(
  env: Readonly<Record<string, string | undefined>>,
  log: Log,
): Tracing | undefined {
  const { settings, warnings } = traceSettings(env);
  for (const warning of warnings) log.warn(warning);
  if (settings === undefined) return undefined;
  const exporter = new SpanExporter(settings, log);
  const spans = new Spans(settings.sampler);
  const observing = observeActivities((...ended) => {
    const span = spans.spanOf(...ended);
    if (span !== undefined) exporter.add(span);
  });
  log.info("calls are traced", { collector: new URL(settings.url).host });
  return {
    get length() {
      return exporter.length;
    },
    get max() {
      return exporter.max;
    },
    get dropped() {
      return exporter.dropped;
    },
    async [Symbol.asyncDispose]() {
      observing[Symbol.dispose]();
      await exporter[Symbol.asyncDispose]();
    },
  };
}
