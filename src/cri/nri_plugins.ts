// NriPlugins of isulad.v1.
import { CriError } from "../base/errors.ts";
import { toLong } from "../base/int64.ts";
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
