// Tests preconditions of calls: the phases, targets and streams that they accept, and the error for all
// others.
import { describe, expect, test } from "bun:test";
import { toLong } from "../../../src/base/int64.ts";
import {
  refuseWhileStarting,
  requestedStreams,
  requireAttachable,
  requireReady,
  requireRunning,
  requireStartable,
  requireTargetPid,
  requireUpdatable,
  targetIdOf,
  timeoutMsOf,
} from "../../../src/cri/preconditions.ts";
import type { ContainerPhase } from "../../../src/state/container.ts";
import type { NamespaceOptions } from "../../../src/spec/namespace_options.ts";
import { codeAndMessage } from "../../spec/inputs.ts";
import { containerRecord, phases, sandboxRecord } from "../fakes.ts";

const allPhases = Object.keys(phases) as ContainerPhase["phase"][];
const inPhase = (phase: ContainerPhase["phase"]) => containerRecord({ phase: phases[phase] });

describe("a container's phase", () => {
  test.each<[string, (container: ReturnType<typeof inPhase>) => unknown, string[]]>([
    ["ExecSync, Exec, Attach and CheckpointContainer accept", requireRunning, ["running"]],
    ["StartContainer accepts", requireStartable, ["created"]],
    ["UpdateContainerResources accepts", requireUpdatable, ["creating", "created", "running"]],
  ])("%s only %p", (_, require, accepted) => {
    const passing = allPhases.filter((phase) => {
      try {
        require(inPhase(phase));
        return true;
      } catch (error) {
        expect(error).toMatchObject({ code: "FAILED_PRECONDITION" });
        return false;
      }
    });
    expect(passing).toEqual(accepted as typeof passing);
  });

  test("is named in the error, with reason and exit code after an exit", () => {
    const error = (phase: ContainerPhase["phase"]) =>
      codeAndMessage(() => requireRunning(inPhase(phase)));
    expect(error("exited")).toEndWith("container c1 is exited (Error, exit code 3), not running");
    expect(error("created")).toEndWith("container c1 is created, not running");
    expect(requireRunning(inPhase("running")).id).toBe("c1");
  });
});

describe("requireReady()", () => {
  test("returns a ready sandbox", () => {
    expect(requireReady(sandboxRecord()).id).toBe("p1");
  });

  test("refuses others, with the reason of a NOTREADY one", () => {
    const notReady = sandboxRecord({ phase: { phase: "notready", message: "stopped" } });
    expect(codeAndMessage(() => requireReady(notReady))).toStartWith(
      "FAILED_PRECONDITION: sandbox p1 is not ready (stopped): ",
    );
    const creating = sandboxRecord({ phase: { phase: "creating" } });
    expect(codeAndMessage(() => requireReady(creating))).toContain("p1 is not ready: ");
  });
});

describe("refuseWhileStarting()", () => {
  const starting = new Set(["c1"]);
  const pod = [containerRecord(), containerRecord({ id: "c2", config: {} })];

  test("refuses a container whose name is being started", () => {
    const again = () =>
      refuseWhileStarting(pod, { metadata: { name: "app", attempt: 1 } }, starting);
    expect(codeAndMessage(again)).toContain("FAILED_PRECONDITION: container c1 of the same name");
  });

  test("accepts another name, and the same name after the start", () => {
    refuseWhileStarting(pod, { metadata: { name: "web" } }, starting);
    refuseWhileStarting(pod, { metadata: { name: "app" } }, new Set(["c2"]));
  });
});

describe("pid mode TARGET", () => {
  const options = (pid: NamespaceOptions["pid"], targetId: string) =>
    ({ pid, targetId }) as NamespaceOptions;

  test("needs a target id; other modes have none", () => {
    expect(targetIdOf(options("target", "c1"))).toBe("c1");
    expect(targetIdOf(options("pod", ""))).toBeUndefined();
    expect(codeAndMessage(() => targetIdOf(options("target", "")))).toContain("INVALID_ARGUMENT");
  });

  test("gets the pid of a running container of the same pod", () => {
    const container = containerRecord({ id: "c2" });
    const pidOf = (target: Parameters<typeof containerRecord>[0]) => () =>
      requireTargetPid(container, containerRecord(target));
    expect(pidOf({ phase: phases.running })()).toBe(7);
    expect(codeAndMessage(pidOf({ phase: phases.exited }))).toContain("FAILED_PRECONDITION");
    const other = pidOf({ phase: phases.running, sandboxId: "p2" });
    expect(codeAndMessage(other)).toBe("INVALID_ARGUMENT: container c1 is in another pod");
  });
});

describe("streams", () => {
  const none = { stdin: false, stdout: false, stderr: false, tty: false };

  test.each([
    [{ stdin: true }, { ...none, stdin: true }],
    [
      { stdout: true, tty: true },
      { ...none, stdout: true, tty: true },
    ],
    [{ stderr: true }, { ...none, stderr: true }],
  ])("%j are accepted", (request, streams) => {
    expect(requestedStreams(request)).toEqual(streams);
  });

  test.each([
    [{}, "at least one must be true"],
    [{ tty: true }, "at least one must be true"],
    [{ stdout: true, stderr: true, tty: true }, "tty and stderr"],
  ])("%j are refused", (request, message) => {
    expect(codeAndMessage(() => requestedStreams(request))).toContain(message);
  });

  test("Attach accepts only the terminal that the container has, and stdin in any case", () => {
    const plain = containerRecord();
    const terminal = containerRecord({ config: { tty: true, stdin: true } });
    requireAttachable(plain, { ...none, stdout: true });
    requireAttachable(plain, { ...none, stdin: true });
    requireAttachable(terminal, { ...none, tty: true, stdin: true });
    requireAttachable(terminal, { ...none, tty: true });
    const refused = (of: typeof plain, streams: object) =>
      codeAndMessage(() => requireAttachable(of, { ...none, ...streams }));
    expect(refused(plain, { tty: true })).toEndWith("tty true: container c1 has no terminal");
    expect(refused(terminal, {})).toEndWith("tty false: container c1 has a terminal");
  });
});

test("timeoutMsOf() converts seconds, and replaces those that no timer can take", () => {
  expect(timeoutMsOf(toLong(0n))).toBe(0);
  expect(timeoutMsOf(toLong(30n))).toBe(30_000);
  expect(timeoutMsOf(toLong(2_147_483n), 5)).toBe(2_147_483_000);
  expect(timeoutMsOf(toLong(2_147_484n))).toBe(2_147_483_000);
  expect(timeoutMsOf(toLong(2n ** 62n), 5)).toBe(5);
});
