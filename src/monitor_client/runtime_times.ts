// Reports the OCI runtime's create and start, which the monitor has measured, as activities of the daemon.
import { reportActivity } from "../base/activity.ts";
import type { RuntimeTimes } from "../monitor/protocol.ts";

/** Call it when the answer arrives: what it reports has ended just now, a create before the start. */
export function reportRuntimeTimes(tookMs: RuntimeTimes | undefined): void {
  const { create, start } = tookMs ?? {}; // absent in the answers to other calls, and of an older monitor
  const endedMs = performance.now();
  const createdMs = endedMs - (start ?? 0);
  if (create !== undefined) {
    const times = { beganMs: createdMs - create, endedMs: createdMs };
    reportActivity("runtime", { operation: "create" }, times);
  }
  if (start !== undefined) {
    reportActivity("runtime", { operation: "start" }, { beganMs: createdMs, endedMs });
  }
}
