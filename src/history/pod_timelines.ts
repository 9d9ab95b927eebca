// Answers ListTimelines of isulad.v1: what happened to pods, and what their calls in flight are doing.
import { callReports } from "../base/activity_report.ts";
import { nowMs } from "../base/clock.ts";
import { toLong } from "../base/int64.ts";
import { isReadOnlyCall } from "../base/read_only_calls.ts";
import type * as proto from "../proto/types.ts";
import type { PodEntry, PodHistory, PodTimeline } from "./pod_history.ts";

export function listTimelines(
  { history }: { history: PodHistory },
  { pod }: proto.ListTimelinesRequest,
): proto.ListTimelinesResponse {
  const since = nanoseconds(history.sinceMs);
  if (!pod) {
    const timelines = history.timelines();
    return { timelines: timelines.map((one) => ({ ...summary(one), entries: [] })), since };
  }
  const found = history.timeline(pod);
  const running = runningCalls(pod);
  if (found === undefined && running.length === 0) return { timelines: [], since };
  const entries = [...(found?.entries ?? []).map(entryMessage), ...running];
  const head = found === undefined ? { pod } : summary(found);
  return { timelines: [{ ...head, entries }], since };
}

function summary({ pod, beganMs, objects, dropped }: PodTimeline) {
  return {
    pod,
    began_at: nanoseconds(beganMs),
    dropped: toLong(dropped),
    objects: objects.map(({ id, container, createdAtNs }) => ({
      id,
      container,
      created_at: toLong(BigInt(createdAtNs)),
    })),
  };
}

function entryMessage(entry: PodEntry): proto.TimelineEntry {
  const { atMs, what, container, detail, code, exitCode } = entry;
  return {
    at: nanoseconds(atMs),
    what,
    container,
    detail,
    code,
    took_ms: toLong(Math.round(entry.tookMs)),
    bytes: toLong(entry.bytes),
    exit_code: exitCode,
    times: toLong(entry.times),
    first_at: nanoseconds(entry.firstMs),
  };
}

function runningCalls(pod: string): proto.TimelineEntry[] {
  const calls = callReports().filter(
    ({ call, subject }) => subject["pod"] === pod && !isReadOnlyCall(call),
  );
  return calls.map(({ call, subject, ageMs, steps }) => ({
    at: nanoseconds(nowMs() - ageMs),
    what: call,
    container: subject["container"] ?? "",
    detail: steps.map(({ step }) => step).join(", "),
    took_ms: toLong(ageMs),
    times: toLong(1),
    first_at: nanoseconds(nowMs() - ageMs),
    is_running: true,
  }));
}

function nanoseconds(ms: number) {
  return toLong(BigInt(Math.trunc(ms * 1000)) * 1000n);
}
