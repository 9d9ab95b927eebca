// Reports the OCI runtime's create and start, which the monitor has measured, as activities of the daemon.
import { reportActivity } from "../base/activity.ts";
import type { RuntimeTimes } from "../monitor/protocol.ts";

/** Call it when the answer arrives: the start has ended just now, and the create before it. */
export function reportRuntimeTimes(tookMs: RuntimeTimes | undefined): void {
  if (tookMs === undefined) return; // of another call, or of an older monitor
  const { create, start } = tookMs;
  const endedMs = performance.now();
  const startedMs = endedMs - start;
  const created = { beganMs: startedMs - create, endedMs: startedMs };
  reportActivity("runtime", { operation: "create" }, created);
  reportActivity("runtime", { operation: "start" }, { beganMs: startedMs, endedMs });
}
