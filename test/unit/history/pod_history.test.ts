// Tests the timelines of pods.
import { afterEach, beforeEach, expect, test } from "bun:test";
import {
  activity,
  beginCall,
  endActivity,
  reportActivity,
  within,
} from "../../../src/base/activity.ts";
import { CriError } from "../../../src/base/errors.ts";
import { entriesMax, podsMax, PodHistory, textBytesMax } from "../../../src/history/pod_history.ts";
import { nri } from "../../../src/proto/nri.js";
import type { Container } from "../../../src/state/container.ts";
import { containerRecord, phases, sandboxRecord } from "../fakes.ts";

const pod = "default/pod";
let history: PodHistory;
beforeEach(() => (history = new PodHistory()));
afterEach(() => history[Symbol.dispose]());

type Subject = { pod?: string; container?: string; image?: string };
const web = { pod, container: "app" };

/** Runs a call of a client as the server does. */
async function call(
  method: string,
  subject: Subject,
  work: () => unknown = () => {},
): Promise<void> {
  const begun = beginCall(method, { subject: () => subject });
  try {
    await within(begun, work);
    endActivity(begun);
  } catch (error) {
    endActivity(begun, error);
  }
}

function fail(message: string, code: "INTERNAL" | "DEADLINE_EXCEEDED" = "INTERNAL"): never {
  throw new CriError(code, message);
}

const entries = (of = pod) => history.timeline(of)?.entries ?? [];
const seen = () =>
  entries().map(({ what, container, detail, code }) => [what, container, detail, code]);

function exit(phase: Partial<typeof phases.exited> = {}): void {
  const record = containerRecord();
  const exited = { ...record, phase: { ...phases.exited, ...phase } } as Container;
  history.containerCommitted(pod, { ...record, phase: phases.running }, exited);
}

test("a pod's calls are listed with their objects and durations", async () => {
  await call("RunPodSandbox", { pod }, () => Bun.sleep(20));
  await call("CreateContainer", { ...web, image: "busybox" });
  await call("StartContainer", web);
  expect(seen()).toEqual([
    ["RunPodSandbox", "", "", ""],
    ["CreateContainer", "app", "busybox", ""],
    ["StartContainer", "app", "", ""],
  ]);
  const [run] = entries();
  expect(run!.tookMs).toBeGreaterThanOrEqual(19);
  expect(run!.atMs).toBeWithin(Date.now() - 60_000, Date.now() - 10);
});

test("calls that only read, execs that succeed, and calls for no pod leave nothing", async () => {
  await call("ContainerStatus", web, () => fail("not found"));
  await call("ExecSync", web);
  await call("RemoveImage", { image: "busybox" }, () => fail("in use"));
  await call("StopContainer", { pod: "4f2a", container: "4f2b" });
  expect(seen()).toEqual([]);
});

test("a failure has code and message; an exec that timed out is one", async () => {
  await call("ExecSync", web, () => fail("killed after 1 s", "DEADLINE_EXCEEDED"));
  await call("StartContainer", web, () => fail("no such file"));
  expect(seen()).toEqual([
    ["ExecSync", "app", "killed after 1 s", "DEADLINE_EXCEEDED"],
    ["StartContainer", "app", "no such file", "INTERNAL"],
  ]);
});

test("what happens again is one entry with the count, the first and the last time", async () => {
  const id = () => crypto.randomUUID().replaceAll("-", "");
  for (let i = 0; i < 3; i++) {
    await call("RunPodSandbox", { pod }, () => fail(`sandbox ${id()}: no address (${i} ms)`));
    await call("StopContainer", web);
  }
  expect(seen().map(([what]) => what)).toEqual(["RunPodSandbox", "StopContainer"]);
  const [failed] = entries();
  expect(failed!.times).toBe(3);
  expect(failed!.detail).toEndWith("no address (2 ms)");
  expect(failed!.firstMs).toBeLessThan(failed!.atMs);
  await call("RunPodSandbox", { pod }, () => fail("another reason"));
  expect(entries()).toHaveLength(3);
});

test("a pull has the bytes that its layers received, and its image", async () => {
  await call("PullImage", { pod, image: "busybox:1.36" }, () => {
    const times = { beganMs: performance.now(), endedMs: performance.now() };
    reportActivity("pull", { phase: "fetch" }, { ...times, bytes: 500 });
    reportActivity("pull", { phase: "fetch" }, { ...times, bytes: 20 });
  });
  await call("PullImage", { pod, image: "busybox:1.37" });
  expect(entries().map(({ detail, bytes }) => [detail, bytes])).toEqual([
    ["busybox:1.36", 520],
    ["busybox:1.37", 0],
  ]);
});

test("the network has an entry with its plugins, apart from those that failed", async () => {
  const run = (command: string, plugin: string, work = () => Bun.sleep(2)) =>
    activity("cni", { command, plugin }, work);
  await call("RunPodSandbox", { pod }, async () => {
    await run("ADD", "bridge");
    await run("ADD", "portmap", async () => fail("no iptables")).catch(() => {});
    await run("DEL", "bridge");
    fail("CNI plugin portmap: no iptables");
  });
  expect(seen()).toEqual([
    ["RunPodSandbox", "", "CNI plugin portmap: no iptables", "INTERNAL"],
    ["network", "", "bridge", ""],
    ["network_end", "", "bridge", ""],
  ]);
  expect(entries()[1]!.tookMs).toBeGreaterThanOrEqual(1);
});

test("an exit has code, reason, message and how long the container ran", () => {
  exit({
    reason: "OOMKilled",
    exitCode: 137,
    message: "the pod's memory limit was reached",
  } as never);
  expect(entries()).toMatchObject([
    {
      what: "exit",
      container: "app",
      exitCode: 137,
      code: "OOMKilled",
      detail: "the pod's memory limit was reached",
    },
  ]);
});

test("a start that failed is the call's failure, not an exit", () => {
  exit({ reason: "StartError" } as never);
  expect(seen()).toEqual([]);
});

test("removals, and a pod that is ready no longer, are listed", () => {
  const sandbox = sandboxRecord();
  const ended = { ...sandbox, phase: { phase: "notready", message: "its pause ended" } } as const;
  history.sandboxCommitted(undefined, sandbox);
  history.sandboxCommitted(sandbox, ended);
  history.containerCommitted(pod, containerRecord(), undefined);
  history.sandboxCommitted(ended, undefined);
  expect(seen()).toEqual([
    ["not_ready", "", "its pause ended", ""],
    ["remove", "app", "", ""],
    ["remove", "", "", ""],
  ]);
});

test("a pod that its client stops is not reported as one that ended by itself", () => {
  const sandbox = sandboxRecord();
  const phase = { phase: "notready", message: "stopped" } as const;
  history.sandboxCommitted(sandbox, { ...sandbox, phase, ending: "stop" });
  expect(seen()).toEqual([]);
});

test("the ids of a pod and its containers stay after their removal, a bounded number", () => {
  const sandbox = sandboxRecord();
  history.sandboxCommitted(undefined, sandbox);
  for (let i = 0; i < 40; i++) {
    const container = containerRecord({ id: `c${i}` });
    history.containerCommitted(pod, undefined, container);
    history.containerCommitted(pod, container, undefined);
  }
  const { objects } = history.timeline(pod)!;
  expect(objects.length).toBeLessThan(30);
  expect(objects.at(-1)).toEqual({ id: "c39", container: "app", createdAtNs: "10" });
});

test("an NRI change names the plugin and the fields", () => {
  const { ContainerAdjustment } = nri.pkg.api.v1alpha1;
  const linux = { resources: { memory: { limit: { value: 1 } } } };
  const sent = ContainerAdjustment.fromObject({ env: [{ key: "A", value: "b" }], linux });
  const received = ContainerAdjustment.decode(ContainerAdjustment.encode(sent).finish());
  history.adjusted(web, "10-tuner", received);
  expect(seen()).toEqual([["nri", "app", "10-tuner: env, linux.resources.memory", ""]]);
});

test("entries are bounded by number and length; the oldest go, and are counted", async () => {
  for (let i = 0; i < entriesMax + 5; i++) {
    const image = `image-${i}`;
    await call("PullImage", { pod, image });
  }
  await call("StartContainer", web, () => fail("x".repeat(10_000)));
  expect(entries()).toHaveLength(entriesMax);
  expect(entries()[0]!.detail).toBe("image-6");
  expect(history.timeline(pod)!.dropped).toBe(6);
  expect(Buffer.byteLength(entries().at(-1)!.detail)).toBeLessThanOrEqual(textBytesMax);
});

test("pods are bounded; removed ones go first, those that changed longest ago before others", async () => {
  const removed = sandboxRecord({ config: { metadata: { name: "gone", namespace: "default" } } });
  await call("RunPodSandbox", { pod: "default/first" });
  history.sandboxCommitted(removed, undefined);
  for (let i = 0; i < podsMax - 1; i++) await call("RunPodSandbox", { pod: `default/${i}` });
  expect(history.timeline("default/gone")).toBeUndefined();
  expect(history.timeline("default/first")).toBeDefined();
  await call("RunPodSandbox", { pod: "default/one-more" });
  expect(history.timeline("default/first")).toBeUndefined();
  expect(history.timelines()).toHaveLength(podsMax);
});

test("a pod whose ended sandbox is removed beside its new one is not a removed pod", async () => {
  await call("RunPodSandbox", { pod: "default/first" });
  const [ended, fresh] = [sandboxRecord({ id: "a" }), sandboxRecord({ id: "b" })];
  history.sandboxCommitted(undefined, ended);
  history.sandboxCommitted(undefined, fresh);
  history.sandboxCommitted(ended, undefined);
  for (let i = 0; i < podsMax - 1; i++) await call("RunPodSandbox", { pod: `default/${i}` });
  expect(history.timeline("default/first")).toBeUndefined();
  expect(history.timeline(pod)).toBeDefined();
});

test("a removal that ends the network, too, leaves a removed pod; a new pod of the name revives it", async () => {
  await call("RunPodSandbox", { pod: "default/first" });
  const sandbox = sandboxRecord();
  history.sandboxCommitted(undefined, sandbox);
  await call("RemovePodSandbox", { pod }, async () => {
    await activity("cni", { command: "DEL", plugin: "bridge" }, () => {});
    history.sandboxCommitted(sandbox, undefined);
  });
  const fill = async (from: string) => {
    for (let i = 0; i < podsMax - 1; i++) await call("RunPodSandbox", { pod: `${from}/${i}` });
  };
  await fill("default");
  expect(history.timeline(pod)).toBeUndefined();
  history.sandboxCommitted(undefined, sandbox);
  history.sandboxCommitted(sandbox, undefined);
  await call("RunPodSandbox", { pod }, () => fail("no address"));
  await fill("default");
  expect(history.timeline(pod)).toBeDefined();
});

test("names that no pod can have are not kept, of whatever length", async () => {
  const refused = () => fail("the name is too long");
  const names = ["x".repeat(300), "a\u001b[2J", "a/b", ""];
  for (const name of names) await call("RunPodSandbox", { pod: `default/${name}` }, refused);
  for (const container of names.slice(0, 3))
    await call("StartContainer", { pod, container }, refused);
  expect(history.timelines()).toEqual([]);
});

test("nothing is kept after the end", async () => {
  history[Symbol.dispose]();
  await call("RunPodSandbox", { pod });
  expect(seen()).toEqual([]);
});

test("the records of an earlier daemon tell of creation, start, restarts and exit", () => {
  const sandbox = sandboxRecord();
  const own = { ...containerRecord(), sandboxId: sandbox.id };
  const killed = {
    ...phases.exited,
    reason: "OOMKilled",
    exitCode: 137,
    message: "",
  } as Container["phase"];
  const again = { ...own.config, metadata: { name: "app", attempt: 2 } };
  const containers: Container[] = [
    { ...own, id: "2", config: again, phase: phases.running, createdAtNs: "3000000000" },
    { ...own, id: "1", phase: killed, createdAtNs: "2000000000" },
    { ...own, id: "3", sandboxId: "unknown" },
  ];
  history.recovered([sandbox], containers);
  const all = history.timeline(history.timelines()[0]!.pod)!;
  expect(all.objects.map(({ id }) => id)).toEqual([sandbox.id, "1", "2"]);
  const names = all.entries.map(({ what, times }) => `${what} ${times}`).toSorted();
  expect(names).toEqual([
    "CreateContainer 1",
    "CreateContainer 1",
    "RunPodSandbox 1",
    "StartContainer 2",
    "exit 1",
  ]);
  expect(all.entries.find(({ what }) => what === "exit")).toMatchObject({
    code: "OOMKilled",
    exitCode: 137,
  });
  expect(all.entries.map(({ detail }) => detail).join()).toContain("restart 2");
  expect(history.timelines()).toHaveLength(1);
});

test("a recovered pod that is not ready says why", () => {
  const sandbox = sandboxRecord();
  history.recovered([{ ...sandbox, phase: { phase: "notready", message: "rebooted" } }], []);
  expect(history.timelines()[0]!.entries.at(-1)).toMatchObject({
    what: "not_ready",
    detail: "rebooted",
  });
});

test.each<["cgroupfs" | "systemd", string, boolean]>([
  ["cgroupfs", "kubepods-burstable-podx.slice", true],
  ["cgroupfs", "/kubepods.slice/kubepods-podx.slice", true],
  ["cgroupfs", "/kubepods/burstable/podx", false],
  ["cgroupfs", "", false],
  ["cgroupfs", "/.slice", false],
  ["systemd", "kubepods-burstable-podx.slice", false],
])("driver %s, parent %j: warned of another driver: %p", (driver, parent, expected) => {
  const sandbox = { ...sandboxRecord(), cgroup: { driver, parent } };
  history.sandboxCommitted(undefined, sandbox);
  const warnings = history.timelines()[0]!.entries.filter(({ what }) => what === "warning");
  expect(warnings.map(({ detail }) => detail.includes("slice of systemd"))).toEqual(
    expected ? [true] : [],
  );
});
