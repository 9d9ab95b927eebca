// Reports the OCI runtime's create and start, which the monitor has measured, as activities of the daemon.
import { reportActivity } from "../base/activity.ts";
import type { RuntimeTimes } from "../monitor/protocol.ts";

/** Call it when the answer arrives: what it reports has ended just now, a create before the start. */
export function reportRuntimeTimes(tookMs: RuntimeTimes | undefined): void {
  let endedMs = performance.now();
  for (const operation of ["start", "create"] as const) {
    const took = tookMs?.[operation]; // absent in the answers to other calls, and of an older monitor
    if (took === undefined) continue;
    reportActivity("runtime", { operation }, { beganMs: endedMs - took, endedMs });
    endedMs -= took;
  }
}
