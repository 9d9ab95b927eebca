// Tests the reconciliation with the monitor: what is committed, requested and logged for each greeting.
import { expect, test } from "bun:test";
import { CriError } from "../../../src/base/errors.ts";
import type { Context } from "../../../src/cri/context.ts";
import type { ExitRecord, Hello } from "../../../src/monitor/protocol.ts";
import { syncWithMonitor } from "../../../src/recovery/monitor.ts";
import type { Container } from "../../../src/state/container.ts";
import type { Sandbox } from "../../../src/state/sandbox.ts";
import { capturedLog, changingStore, containerRecord, phases, sandboxRecord } from "../fakes.ts";

type Records = { sandboxes?: Sandbox[]; containers?: Container[] };

function fixture(
  { sandboxes = [], containers = [] }: Records,
  adopt: (id: string) => Promise<void> = async () => {},
) {
  const { log, lines } = capturedLog("info");
  const calls: string[] = [];
  const context = {
    log,
    bootId: "boot",
    starting: new Map(),
    sandboxes: changingStore(sandboxes),
    containers: changingStore(containers),
    handlers: new Map([["", { command: { path: "/runc", root: "/run/runc" } }]]),
    config: { state: "/state", runtimeTimeoutMs: 100, startTimeoutMs: 100 },
    cgroup: { name: "cgroupfs", containerPaths: () => ({}) },
    exits: { exited: (id: string) => calls.push(`exited ${id}`) },
    monitor: {
      call: async (name: string, { id }: { id: string }) => void calls.push(`${name} ${id}`),
      adopt: async ({ id, pid }: { id: string; pid: number }) => {
        calls.push(`adopt ${id} ${pid}`);
        await adopt(id);
      },
    },
  };
  const sync = async (hello: Partial<Hello>) => {
    const whole = { exits: [], running: [], starting: [], ...hello } as unknown as Hello;
    await syncWithMonitor(context as unknown as Context, whole);
    await Bun.sleep(20); // the corrections go on in the background
  };
  return { sync, calls, lines, sandboxes, containers };
}

const refuse = async () => {
  throw new CriError("UNIMPLEMENTED", "an older monitor");
};
const exit = (id: string) => ({ id, pid: 7, startedAtNs: "20", exitCode: 3 }) as ExitRecord;
const paused = () => sandboxRecord({ pause: { pid: 9 }, phase: { phase: "ready" } });

test("nothing is done for records that the greeting confirms", async () => {
  const { sync, calls, lines } = fixture({
    sandboxes: [paused()],
    containers: [
      containerRecord({ id: "c1", phase: phases.running }),
      containerRecord({ id: "c2", phase: phases.exited }),
      containerRecord({ id: "c3" }),
    ],
  });
  const running = ["c1", "p1"].map((id) => ({ id, pid: 7, startedAtNs: "20" }));
  await sync({ running: running as Hello["running"], exits: [exit("c2")] });
  expect(calls).toEqual([]);
  expect(lines).toEqual([]);
});

test("a container that the monitor runs is RUNNING, with its pid", async () => {
  const { sync, containers } = fixture({ containers: [containerRecord()] });
  await sync({ running: [{ id: "c1", pid: 42, startedAtNs: "21" }] as Hello["running"] });
  expect(containers[0]!.phase).toEqual({ phase: "running", pid: 42, startedAtNs: "21" });
});

test("a running container that the monitor does not know is adopted, and stays as it is", async () => {
  const record = containerRecord({ phase: phases.running });
  const { sync, calls, containers } = fixture({ containers: [record] });
  await sync({});
  expect(calls).toEqual(["adopt c1 7"]);
  expect(containers[0]!.phase).toEqual(phases.running);
});

test("one that the monitor refuses to adopt is killed, and lost", async () => {
  const record = containerRecord({ phase: phases.running });
  const { sync, calls, containers } = fixture({ containers: [record] }, refuse);
  await sync({});
  expect(calls).toEqual(["adopt c1 7", "remove c1", "exited c1"]);
  expect(containers[0]!.phase).toMatchObject({ phase: "exited", reason: "Unknown" });
});

test("a container that runs though its start has failed is killed", async () => {
  const { sync, calls } = fixture({ containers: [containerRecord({ phase: phases.exited })] });
  await sync({ running: [{ id: "c1", pid: 42, startedAtNs: "21" }] as Hello["running"] });
  expect(calls).toEqual(["remove c1"]);
});

test("a pause container that the monitor does not run is adopted, or ends its sandbox", async () => {
  const adopted = fixture({ sandboxes: [paused()] });
  await adopted.sync({});
  expect(adopted.calls).toEqual(["adopt p1 9"]);
  expect(adopted.sandboxes[0]!.phase.phase).toBe("ready");
  const refused = fixture({ sandboxes: [paused()] }, refuse);
  await refused.sync({});
  expect(refused.sandboxes[0]!.phase.phase).toBe("notready");
});

test("exits without a record are forgotten, others are kept", async () => {
  const { sync, calls } = fixture({ containers: [containerRecord({ phase: phases.exited })] });
  await sync({ exits: [exit("c1"), exit("gone")] });
  expect(calls).toEqual(["remove gone"]);
});

test("an update that was cut off is rolled back, of that container only", async () => {
  const { sync, lines } = fixture({
    containers: [containerRecord(), containerRecord({ id: "c2", updating: "{}" })],
  });
  await sync({});
  const rolled = lines.filter((line) => line.includes("rolling back an update that was cut off"));
  expect(rolled).toHaveLength(1);
  expect(rolled[0]).toContain("c2");
});

test("a failure is logged with its id, and holds up no other container", async () => {
  const records = ["c1", "c2"].map((id) => containerRecord({ id, phase: phases.running }));
  const { sync, calls, lines } = fixture({ containers: records }, async (id) => {
    if (id === "c1") throw new CriError("UNAVAILABLE", "the monitor has ended");
  });
  await sync({});
  expect(calls).toEqual(["adopt c1 7", "adopt c2 7"]);
  expect(lines.at(-1)).toContain("failed in part, retrying in 60 s");
  expect(lines.at(-1)).toContain("c1: the monitor has ended");
});
