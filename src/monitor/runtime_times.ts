// Measures how long the OCI runtime's create and start take within a call that starts a container.
import { currentActivity, observeActivities, rootOf } from "../base/activity.ts";
import type { RuntimeTimes, Started } from "./protocol.ts";

const operations: Record<string, keyof RuntimeTimes> = {
  "runtime-create": "create",
  "shim-create": "create",
  "runtime-start": "start",
};

/** Call it in the context of the daemon's call. */
export async function withRuntimeTimes(
  start: () => Promise<Started>,
): Promise<Started & { tookMs: RuntimeTimes }> {
  const call = currentActivity();
  const tookMs: RuntimeTimes = {};
  using _ = observeActivities((activity, endedMs) => {
    const operation = operations[activity.labels["step"] ?? ""];
    if (operation === undefined || rootOf(activity) !== call) return;
    tookMs[operation] = endedMs - activity.beganMs;
  });
  return { ...(await start()), tookMs };
}
