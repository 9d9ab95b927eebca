// Tests sandbox and container records: their transitions, names, and the events that commits publish.
import { describe, expect, test } from "bun:test";
import type { Exit } from "../../../src/state/exit.ts";
import * as containers from "../../../src/state/container.ts";
import { containerEvents, sandboxEvents } from "../../../src/state/events.ts";
import * as sandboxes from "../../../src/state/sandbox.ts";

type ContainerPhase = containers.ContainerPhase;
const running: ContainerPhase = { phase: "running", pid: 7, startedAtNs: "5" };
const exited: ContainerPhase = {
  phase: "exited",
  startedAtNs: "5",
  finishedAtNs: "9",
  exitCode: 0,
  reason: "Completed",
  message: "",
};

function container(phase: ContainerPhase): containers.Container {
  return { id: "c", config: {}, phase } as unknown as containers.Container;
}

function sandbox(rest: Partial<sandboxes.Sandbox> = {}): sandboxes.Sandbox {
  const networkSettings = sandboxes.noNetworkYet("s", "/netns");
  const base = { id: "s", torndown: false, networkSettings, phase: { phase: "ready" } };
  return { ...base, ...rest } as unknown as sandboxes.Sandbox;
}

const exit: Exit = {
  exitCode: 0,
  known: true,
  startedAtNs: "5",
  finishedAtNs: "9",
  oomKilled: false,
  lostLogBytes: 0,
};

describe("a container", () => {
  test("that is created runs", () => {
    const after = containers.running(container({ phase: "created" }), 7, "5");
    expect(after.phase).toEqual(running);
  });

  test("that runs is unchanged by a report of the same start, and takes another one", () => {
    const before = container(running);
    expect(containers.running(before, 7, "5")).toBe(before);
    expect(containers.running(before, 8, "5").phase).toMatchObject({ pid: 8 });
    expect(containers.running(before, 7, "6").phase).toMatchObject({ startedAtNs: "6" });
  });

  test("that has exited stays so", () => {
    const before = container(exited);
    expect(containers.running(before, 7, "5")).toBe(before);
    expect(containers.exited(before, { ...exit, exitCode: 1 })).toBe(before);
    expect(containers.lost(before, "lost", "9")).toBe(before);
    expect(containers.startSeen(before, 7, "5")).toBe(before);
  });

  test("that is created has run where its exit proves it, others do not change", () => {
    expect(containers.startSeen(container({ phase: "created" }), 7, "5").phase).toEqual(running);
    const before = container({ phase: "running", pid: 8, startedAtNs: "6" });
    expect(containers.startSeen(before, 7, "5")).toBe(before);
  });

  test.each([
    ["code 0", {}, "Completed", ""],
    ["code 1", { exitCode: 1 }, "Error", ""],
    ["an OOM kill", { exitCode: 137, oomKilled: true }, "OOMKilled", "for memory"],
    [
      "the container's limit",
      { oomKilled: true, oomLimit: "container" },
      "OOMKilled",
      "the container's memory limit",
    ],
    [
      "the pod's limit",
      { oomKilled: true, oomLimit: "pod" },
      "OOMKilled",
      "the pod's memory limit",
    ],
    ["an unknown code", { known: false, oomKilled: true }, "Unknown", "exit code is not known"],
    ["lost output", { lostLogBytes: 3 }, "Completed", "3 bytes of its last output"],
  ] as const)("that exits with %s has reason and message", (_, facts, reason, message) => {
    const { phase } = containers.exited(container(running), { ...exit, ...facts });
    expect(phase).toMatchObject({ phase: "exited", reason });
    if (phase.phase !== "exited") throw new Error("not exited");
    if (message === "") expect(phase.message).toBe("");
    else expect(phase.message).toContain(message);
    if (reason === "Unknown") expect(phase.message).not.toContain("for memory");
  });

  test("that a plugin evicts exits with the plugin's reason first, in its message alone", () => {
    const messageOf = (reason: string, facts: Partial<typeof exit> = {}) => {
      const { phase } = containers.exited(containers.evicted(container(running), reason), {
        ...exit,
        exitCode: 9,
        ...facts,
      });
      expect(phase).toMatchObject({ reason: "Error" });
      return phase.phase === "exited" ? phase.message : "";
    };
    const evicted = "an NRI plugin evicted the container: ";
    expect(messageOf("too much")).toBe(`${evicted}too much`);
    expect(messageOf("")).toBe(`${evicted}without a reason`);
    expect(messageOf("x", { lostLogBytes: 3 })).toStartWith(`${evicted}x; 3 bytes`);
    const before = container(exited);
    expect(containers.evicted(before, "late")).toBe(before);
  });

  test("that was lost is EXITED with code 255, and keeps its start", () => {
    const phaseOf = (phase: ContainerPhase) => containers.lost(container(phase), "why", "9").phase;
    const lost = { phase: "exited", exitCode: 255, reason: "Unknown", message: "why" };
    expect(phaseOf(running)).toMatchObject({ ...lost, startedAtNs: "5", finishedAtNs: "9" });
    expect(phaseOf({ phase: "created" })).toMatchObject({ ...lost, startedAtNs: "0" });
    expect(phaseOf({ phase: "creating" })).toEqual({ phase: "creating" });
  });

  test("that cannot be started is EXITED with containerd's code", () => {
    const { phase } = containers.startFailed(container({ phase: "created" }), "why", "9");
    expect(phase).toMatchObject({ exitCode: 128, reason: "StartError", startedAtNs: "0" });
  });

  test("keeps the annotations of an earlier update where the last has none", () => {
    const before = { ...container(running), updateAnnotations: { a: "1" }, updating: "{}" };
    const after = containers.updateEnded(before, {});
    expect(after.updateAnnotations).toEqual({ a: "1" });
    expect("updating" in after).toBe(false);
    expect(containers.updateEnded(before, {}, { b: "2" }).updateAnnotations).toEqual({ b: "2" });
  });
});

describe("a sandbox", () => {
  test("that is not ready keeps its first reason", () => {
    const before = sandboxes.notReady(sandbox(), "first");
    expect(before.phase).toEqual({ phase: "notready", message: "first" });
    expect(sandboxes.notReady(before, "second")).toBe(before);
  });

  test("that is to end is NOTREADY, and remembers how", () => {
    expect(sandboxes.ending(sandbox(), "undo", "why")).toMatchObject({
      ending: "undo",
      phase: { phase: "notready", message: "why" },
    });
    const before = sandboxes.ending(sandbox(), "stop", "why");
    expect(sandboxes.ending(before, "stop", "again")).toBe(before);
    expect(sandboxes.ending(before, "undo", "again").ending).toBe("undo");
  });

  test("that is torn down ends no more", () => {
    const before = sandboxes.tornDown(sandboxes.ending(sandbox(), "stop", "why"));
    expect(before).toMatchObject({ torndown: true, networkSettings: { Activation: false } });
    expect("ending" in before).toBe(false);
    expect(sandboxes.ending(before, "stop", "again")).toBe(before);
  });

  test("that lost its folder is undone, torn down or not", () => {
    expect(sandboxes.abandoned(sandbox({ torndown: true })).ending).toBe("undo");
  });

  test("is an attempt of the same pod by uid, namespace and name", () => {
    const pod = (uid: string, attempt: number) => ({
      metadata: { name: "n", namespace: "ns", uid, attempt },
    });
    expect(sandboxes.isSamePod(pod("u", 0), pod("u", 1))).toBe(true);
    expect(sandboxes.isSamePod(pod("u", 0), pod("v", 0))).toBe(false);
  });

  test("has a name that no other parts give", () => {
    expect(sandboxes.reservedName(["a_b", "c"])).not.toBe(sandboxes.reservedName(["a", "b_c"]));
    expect(sandboxes.reservedName(["a%5F", "c"])).not.toBe(sandboxes.reservedName(["a_", "c"]));
  });
});

describe("events", () => {
  test.each([
    ["created", undefined, { phase: "created" }, ["CREATED"]],
    ["started", { phase: "created" }, running, ["STARTED"]],
    ["stopped", running, exited, ["STOPPED"]],
    ["updated", running, running, []],
    ["listed as created", { phase: "creating" }, { phase: "created" }, []],
    ["removed", exited, undefined, ["DELETED"]],
    ["removed, never listed", undefined, undefined, []],
  ] as const)("of a container that is %s", (_, before, after, events) => {
    const record = (phase: ContainerPhase | undefined) => phase && container(phase);
    expect(containerEvents(record(before), record(after))).toEqual([...events]);
  });

  const ready = { phase: "ready" } as const;
  const notready = { phase: "notready", message: "" } as const;
  test.each([
    ["created and ready", undefined, ready, ["CREATED", "STARTED"]],
    ["created in vain", undefined, notready, ["CREATED", "STOPPED"]],
    ["being created", undefined, { phase: "creating" }, ["CREATED"]],
    ["stopped", ready, notready, ["STOPPED"]],
    ["updated", ready, ready, []],
    ["removed", notready, undefined, ["DELETED"]],
    ["removed, never listed", undefined, undefined, []],
  ] as const)("of a sandbox that is %s", (_, before, after, events) => {
    const record = (phase: sandboxes.SandboxPhase | undefined) => phase && sandbox({ phase });
    expect(sandboxEvents(record(before), record(after))).toEqual([...events]);
  });
});
