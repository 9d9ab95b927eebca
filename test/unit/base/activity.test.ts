// Tests that calls in flight, their steps, and locks with their waiters are listed while they last, and no longer.
import { afterEach, describe, expect, test } from "bun:test";
import { setTimeout as sleep } from "node:timers/promises";
import {
  activitiesUnderWay,
  activity,
  activityName,
  beginCall,
  endActivity,
  observeActivities,
  reportActivity,
  within,
  type Activity,
} from "../../../src/base/activity.ts";
import { callReports, lockReports } from "../../../src/base/activity_report.ts";
import { step } from "../../../src/base/failpoints.ts";
import { Gate } from "../../../src/base/gate.ts";
import { KeyedLock } from "../../../src/base/keyed_lock.ts";
import { SingleFlight } from "../../../src/base/single_flight.ts";

const begun: Activity[] = [];
afterEach(() => {
  for (const call of begun.splice(0)) endActivity(call);
});

/** Runs work as a client's call, which ends with it. */
async function call<T>(method: string, work: () => Promise<T>): Promise<T> {
  const own = beginCall(method, { subject: () => ({ pod: "shop/web" }) });
  begun.push(own);
  try {
    return await within(own, work);
  } finally {
    endActivity(own);
  }
}

const reportOf = (name: string) => callReports().find((report) => report.call === name);
const locks = (part: string) => lockReports().filter(({ lock }) => lock.includes(part));

describe("calls in flight", () => {
  test("have their steps, the outermost first, and their age", async () => {
    const hold = Promise.withResolvers<void>();
    const made = call("RunPodSandbox", () =>
      step("cni-add", () =>
        activity("cni", { command: "ADD", plugin: "bridge" }, () => hold.promise),
      ),
    );
    await sleep(20);
    const report = reportOf("RunPodSandbox")!;
    expect(report.steps.map((one) => one.step)).toEqual(["step cni-add", "cni ADD bridge"]);
    expect(report.subject).toEqual({ pod: "shop/web" });
    expect(report.ageMs).toBeGreaterThanOrEqual(15);
    expect(report.steps[1]!.ageMs).toBeGreaterThanOrEqual(15);
    hold.resolve();
    await made;
    expect(reportOf("RunPodSandbox")).toBeUndefined();
  });

  test("lose a step that fails, and its error goes to the caller and the observers", async () => {
    const seen: [string, unknown][] = [];
    using _ = observeActivities((one, _endedMs, error) => seen.push([activityName(one), error]));
    const failure = new Error("no address");
    const failed = call("RunPodSandbox", () => step("cni-add", () => Promise.reject(failure)));
    expect(await failed.catch((error: unknown) => error)).toBe(failure);
    expect(seen).toEqual([
      ["step cni-add", failure],
      ["RunPodSandbox", undefined],
    ]);
  });

  test("two at once do not see each other's steps", async () => {
    const hold = Promise.withResolvers<void>();
    const calls = ["StopContainer", "StartContainer"].map((name) =>
      call(name, () => activity("monitor", { call: `of ${name}` }, () => hold.promise)),
    );
    await sleep(1);
    for (const name of ["StopContainer", "StartContainer"]) {
      expect(reportOf(name)!.steps.map((one) => one.step)).toEqual([`monitor of ${name}`]);
    }
    hold.resolve();
    await Promise.all(calls);
  });

  test("work that outlives its call belongs to nobody, and the call's request is let go of", async () => {
    const hold = Promise.withResolvers<void>();
    const later = Promise.withResolvers<void>();
    let work: Promise<void> | undefined;
    await call("PullImage", async () => {
      work = hold.promise.then(() => activity("store", { kind: "sandbox" }, () => later.promise));
    });
    expect(begun[0]!.subject).toBeUndefined();
    hold.resolve();
    await sleep(1);
    expect(activitiesUnderWay().map((one) => [activityName(one), one.parent])).toContainEqual([
      "store sandbox",
      undefined,
    ]);
    later.resolve();
    await work;
    expect(reportOf("store sandbox")).toBeUndefined();
  });

  test("an activity of another process is reported inside the call", async () => {
    const seen: Activity[] = [];
    using _ = observeActivities((one) => seen.push(one));
    await call("StartContainer", async () => {
      reportActivity("runtime", { operation: "create" }, { beganMs: 1, endedMs: 3 });
    });
    expect(seen[0]).toMatchObject({ kind: "runtime", beganMs: 1, parent: begun[0] });
  });
});

describe("locks", () => {
  test("have holders and waiters while they are held, and are gone afterwards", async () => {
    const lock = new KeyedLock("container");
    const hold = Promise.withResolvers<void>();
    const first = call("StopContainer", () => lock.run("4f2a", undefined, () => hold.promise));
    const second = call("RemoveContainer", () => lock.run("4f2a", undefined, async () => {}));
    await sleep(5);
    expect(locks("4f2a")).toEqual([
      {
        lock: "container 4f2a",
        holders: [{ by: "StopContainer shop/web", forMs: expect.any(Number) }],
        waiting: [{ by: "RemoveContainer shop/web", forMs: expect.any(Number) }],
      },
    ]);
    expect(reportOf("RemoveContainer")!.steps[0]!.step).toBe("wait container 4f2a");
    hold.resolve();
    await Promise.all([first, second]);
    expect(locks("4f2a")).toEqual([]);
  });

  test("a gate names who is inside and who waits to close it", async () => {
    const gate = new Gate("the test's gate");
    const inside = await gate.enter();
    const closing = gate.close();
    await sleep(1);
    const [report] = locks("the test's gate");
    expect(report!.holders).toHaveLength(2); // the one inside, and the one that closes it
    expect(report!.waiting).toHaveLength(1);
    inside[Symbol.dispose]();
    (await closing)[Symbol.dispose]();
    expect(locks("the test's gate")).toEqual([]);
  });

  test("a call that joins another one waits for it", async () => {
    const flight = new SingleFlight<void>();
    const hold = Promise.withResolvers<void>();
    const { signal } = new AbortController();
    const first = flight.join("stop 1", signal, () => hold.promise);
    const second = call("StopContainer", () => flight.join("stop 1", signal, async () => {}));
    await sleep(1);
    expect(reportOf("StopContainer")!.steps[0]!.step).toBe("wait the same call");
    hold.resolve();
    await Promise.all([first, second]);
  });
});
