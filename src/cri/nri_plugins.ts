// NriPlugins of isulad.v1, and the same figures as metrics.
import { CriError } from "../base/errors.ts";
import { toLong } from "../base/int64.ts";
import { gauge, type Family } from "../stats/prometheus.ts";
import type { NriPluginsResponse } from "../proto/types.ts";
import type { Context } from "./context.ts";

/** @throws CriError FAILED_PRECONDITION if NRI is off. */
export function nriPlugins({ nri }: Context): NriPluginsResponse {
  if (nri === undefined) {
    const message = "NRI is off: set nri-support in daemon.json and restart";
    throw new CriError("FAILED_PRECONDITION", message);
  }
  return {
    plugins: nri.plugins().map(({ id, kind, version, events, calls, lastError }) => ({
      id,
      kind,
      version,
      events,
      calls: calls.map(([method, { count, failed, totalMs, maxMs }]) => ({
        method,
        count: toLong(count),
        failed: toLong(failed),
        total_ms: totalMs,
        max_ms: maxMs,
      })),
      last_error: lastError,
    })),
  };
}

/** By plugin and method; disconnected plugins have no samples. */
export function nriFamilies({ nri }: Context): Family[] {
  if (nri === undefined) return [];
  const plugins = nri.plugins();
  const calls = plugins.flatMap(({ id, calls }) =>
    calls.map(([method, figures]) => ({ labels: { plugin: id, method }, figures })),
  );
  const family = (
    name: string,
    help: string,
    value: (figures: (typeof calls)[number]["figures"]) => number,
  ): Family => ({
    name,
    help,
    type: "counter",
    samples: calls.map(({ labels, figures }) => ({ labels, value: value(figures) })),
  });
  return [
    gauge("isulad_nri_plugins", "NRI plugins in service", [{ labels: {}, value: plugins.length }]),
    family("isulad_nri_calls_total", "Calls of NRI plugins", ({ count }) => count),
    family(
      "isulad_nri_failed_calls_total",
      "Calls of NRI plugins that failed",
      ({ failed }) => failed,
    ),
    family(
      "isulad_nri_call_seconds_total",
      "Total duration of all calls",
      ({ totalMs }) => totalMs / 1000,
    ),
  ];
}
