// Tests the reconciliation's tables: which function each difference between records, monitor, and node calls.
import { describe, expect, test } from "bun:test";
import * as rules from "../../../src/recovery/rules.ts";

const { decide } = rules;
const here = { isThisBoot: true };
const rebooted = { isThisBoot: false };

describe("a container at the start", () => {
  test.each([
    ["was being created", "creating", here, "undoCreate"],
    ["was being created before a reboot", "creating", rebooted, "undoCreate"],
    ["was created before a reboot", "created", rebooted, "loseInReboot"],
    ["ran before a reboot", "running", rebooted, "loseInReboot"],
    ["is created", "created", here, undefined],
    ["runs", "running", here, undefined],
    ["has exited", "exited", here, undefined],
  ] as const)("that %s", (_, phase, boot, rule) => {
    expect(decide(rules.containersAtStart, { phase, ...boot })).toBe(rule);
  });
});

describe("a sandbox at the start", () => {
  test.each([
    ["was being made", "creating", here, false, "undoRun"],
    ["was being made, but has containers", "creating", here, true, "stopUnrecorded"],
    ["was being made before a reboot", "creating", rebooted, false, "stopAfterReboot"],
    ["was ready before a reboot", "ready", rebooted, true, "stopAfterReboot"],
    ["was not ready before a reboot", "notready", rebooted, false, "stopAfterReboot"],
    ["is ready", "ready", here, true, undefined],
    ["is ready without containers", "ready", here, false, undefined],
    ["is not ready", "notready", here, true, undefined],
  ] as const)("that %s", (_, phase, boot, hasContainers, rule) => {
    expect(decide(rules.sandboxesAtStart, { phase, ...boot, hasContainers })).toBe(rule);
  });
});

/** A record that the monitor says nothing about. */
const unreported: rules.ContainerAtGreeting = {
  phase: "created",
  isThisBoot: true,
  hasExit: false,
  isRunning: false,
  isStarting: false,
  isOwnStart: false,
};
const greeted = (facts: Partial<rules.ContainerAtGreeting>) => ({ ...unreported, ...facts });

describe("a container at the monitor's greeting", () => {
  test.each([
    ["is created", {}, undefined],
    ["has an exit there", { phase: "running", hasExit: true }, "commitReportedExit"],
    ["was created and has an exit there", { hasExit: true }, "commitReportedExit"],
    ["has an exit on record already", { phase: "exited", hasExit: true }, undefined],
    [
      "has an exit of an earlier boot",
      { phase: "running", hasExit: true, isThisBoot: false },
      undefined,
    ],
    ["has an exit, and starts", { hasExit: true, isStarting: true }, "commitReportedExit"],
    ["is being started for an earlier daemon", { isStarting: true }, "followForeignStart"],
    ["is being started for this daemon", { isStarting: true, isOwnStart: true }, undefined],
    ["is being started and runs", { isStarting: true, isRunning: true }, "followForeignStart"],
    [
      "is being started for this daemon and runs",
      { isStarting: true, isRunning: true, isOwnStart: true },
      undefined,
    ],
    ["starts after a failed start", { phase: "exited", isStarting: true }, undefined],
    ["starts in another boot", { isStarting: true, isThisBoot: false }, undefined],
    ["runs there, CREATED on record", { isRunning: true }, "commitReportedStart"],
    ["runs there and on record", { phase: "running", isRunning: true }, "commitReportedStart"],
    ["runs there, EXITED on record", { phase: "exited", isRunning: true }, undefined],
    ["runs there in another boot", { isRunning: true, isThisBoot: false }, undefined],
  ] as const)("that %s", (_, facts, rule) => {
    expect(decide(rules.containersAtGreeting, greeted(facts))).toBe(rule);
  });
});

describe("a container after the greeting", () => {
  test.each([
    ["is EXITED on record, but runs", { phase: "exited", isRunning: true }, "killFailedStart"],
    ["is EXITED on record, but starts", { phase: "exited", isStarting: true }, "killFailedStart"],
    ["is EXITED on record", { phase: "exited" }, undefined],
    ["is EXITED on record and has an exit", { phase: "exited", hasExit: true }, undefined],
    ["runs on record only", { phase: "running" }, "adoptOrLose"],
    ["runs on record of another boot", { phase: "running", isThisBoot: false }, undefined],
    ["runs on record and has an exit", { phase: "running", hasExit: true }, undefined],
    ["runs on record and there", { phase: "running", isRunning: true }, undefined],
    ["runs on record and starts", { phase: "running", isStarting: true }, undefined],
    ["is created", {}, undefined],
    ["is created on record, but runs", { isRunning: true }, undefined],
  ] as const)("that %s", (_, facts, rule) => {
    expect(decide(rules.containersAfterGreeting, greeted(facts))).toBe(rule);
  });
});

describe("a sandbox after the greeting", () => {
  test.each([
    ["is ready, its pause container unknown", "ready", true, false, "adoptPauseOrEnd"],
    ["is ready, its pause container runs", "ready", true, true, undefined],
    ["is ready without a pause container", "ready", false, false, undefined],
    ["is not ready", "notready", true, false, undefined],
    ["is being made", "creating", true, false, undefined],
  ] as const)("that %s", (_, phase, hasPause, isRunning, rule) => {
    expect(decide(rules.sandboxesAfterGreeting, { phase, hasPause, isRunning })).toBe(rule);
  });
});

test("an update that was cut off is rolled back, others are kept", () => {
  expect(decide(rules.updatesAfterGreeting, { isUpdating: true })).toBe("undoCutUpdate");
  expect(decide(rules.updatesAfterGreeting, { isUpdating: false })).toBeUndefined();
});

test("the monitor forgets an exit without a record, and keeps others", () => {
  expect(decide(rules.exitsAfterGreeting, { hasRecord: false })).toBe("forgetExit");
  expect(decide(rules.exitsAfterGreeting, { hasRecord: true })).toBeUndefined();
});

describe("a sweep", () => {
  const { orphans } = rules;

  test("removes what has no record, and keeps what has one", () => {
    const named = [
      "removeContainers",
      "removeStreamFolders",
      "detachNetworks",
      "removePods",
    ] as const;
    for (const name of named) {
      expect(orphans[name].applies({ hasRecord: false })).toBe(true);
      expect(orphans[name].applies({ hasRecord: true })).toBe(false);
    }
  });

  test("unmounts a set-aside record's mounts although a record has its id", () => {
    const applies = (hasRecord: boolean, isSetAside: boolean) =>
      orphans.removeMounts.applies({ hasRecord, isSetAside });
    expect([applies(false, false), applies(true, true), applies(false, true)]).toEqual([
      true,
      true,
      true,
    ]);
    expect(applies(true, false)).toBe(false);
  });

  test("keeps a network namespace until CNI DEL has passed", () => {
    const applies = (hasRecord: boolean, isAttached: boolean) =>
      orphans.removeNetns.applies({ hasRecord, isAttached });
    expect(applies(false, false)).toBe(true);
    expect(applies(false, true)).toBe(false);
    expect(applies(true, false)).toBe(false);
  });

  test("goes on with a teardown only when no container of the pod runs", () => {
    const applies = (isEnding: boolean, hasRunning: boolean) =>
      orphans.endSandboxes.applies({ isEnding, hasRunning });
    expect(applies(true, false)).toBe(true);
    expect(applies(true, true)).toBe(false);
    expect(applies(false, false)).toBe(false);
  });

  test("checks the namespaces of ready sandboxes only", () => {
    expect(orphans.checkSandboxes.applies({ phase: "ready" })).toBe(true);
    expect(orphans.checkSandboxes.applies({ phase: "creating" })).toBe(false);
    expect(orphans.checkSandboxes.applies({ phase: "notready" })).toBe(false);
  });

  test("runs CNI GC at the start and an hour after the last", () => {
    const applies = (sinceLastMs: number) => orphans.collectNetworks.applies({ sinceLastMs });
    expect([applies(Infinity), applies(3_600_000), applies(3_599_999)]).toEqual([
      true,
      true,
      false,
    ]);
  });

  test("takes a network away in order: DEL, then the namespace, then the cgroup, then GC", () => {
    expect(Object.keys(orphans)).toEqual([
      "removeContainers",
      "endSandboxes",
      "checkSandboxes",
      "removeMounts",
      "removeStreamFolders",
      "detachNetworks",
      "removeNetns",
      "removePods",
      "collectNetworks",
    ]);
  });
});
