// Tests ListTimelines, without a daemon.
import { expect, test } from "bun:test";
import { activity, beginCall, endActivity, within } from "../../../src/base/activity.ts";
import { PodHistory } from "../../../src/history/pod_history.ts";
import { listTimelines } from "../../../src/history/pod_timelines.ts";
import { isulad } from "../../../src/proto/messages.js";
import { containerRecord, sandboxRecord } from "../fakes.ts";

const pod = "default/pod";

/** As a client receives it. */
function answered(history: PodHistory, of = "") {
  const type = isulad.v1.ListTimelinesResponse;
  const bytes = type.encode(listTimelines({ history }, { pod: of })).finish();
  return type.toObject(type.decode(bytes), { longs: Number }) as {
    timelines?: Record<string, unknown>[];
    since?: number;
  };
}

test("all timelines are listed with their ids, one pod's with its entries", () => {
  using history = new PodHistory();
  history.sandboxCommitted(undefined, sandboxRecord());
  history.containerCommitted(pod, undefined, containerRecord());
  history.containerCommitted(pod, containerRecord(), undefined);
  const objects = [
    { id: "p1", created_at: 5 },
    { id: "c1", container: "app", created_at: 10 },
  ];
  const [summary] = answered(history).timelines!;
  expect(summary).toMatchObject({ pod, objects });
  expect(summary!["entries"]).toBeUndefined();
  const [whole] = answered(history, pod).timelines!;
  expect(whole).toMatchObject({ pod, objects, entries: [{ what: "remove", container: "app" }] });
  const since = Math.trunc(history.sinceMs * 1000) * 1000;
  expect(answered(history, "default/none")).toEqual({ since });
  expect(Math.abs(history.sinceMs - Date.now())).toBeLessThan(60_000);
});

test("a call in flight is the last entry, with its age and its steps", async () => {
  using history = new PodHistory();
  const call = beginCall("RunPodSandbox", { subject: () => ({ pod }) });
  const { promise, resolve } = Promise.withResolvers<void>();
  const work = within(call, () =>
    activity("cni", { command: "ADD", plugin: "slow" }, () => promise),
  );
  await Bun.sleep(15);
  const [timeline] = answered(history, pod).timelines!;
  const [entry] = timeline!["entries"] as Record<string, unknown>[];
  expect(entry).toMatchObject({ what: "RunPodSandbox", detail: "cni ADD slow", is_running: true });
  expect(entry!["took_ms"]).toBeGreaterThanOrEqual(14);
  resolve();
  await work;
  endActivity(call);
  const { timelines } = answered(history, pod);
  expect(timelines![0]!["entries"]).toMatchObject([{ what: "RunPodSandbox" }, { what: "network" }]);
});
