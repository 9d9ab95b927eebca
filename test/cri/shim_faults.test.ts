// Tests shims that fail at some call: the container concerned fails with a clear error, and the other containers of
// the pod, which have the same shim, go on.
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "bun:test";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createConnection, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { toLong } from "../../src/base/int64.ts";
import { runtime } from "../../src/proto/messages.js";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { failure, until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import type { Snapshot } from "../leaks.ts";
import { AddedText } from "../log_text.ts";
import { converse } from "../stream_client.ts";
import { recordedCalls, recordingShim, setFaults } from "../recording_shim.ts";

const { ContainerState } = runtime.v1;
const folder = mkdtempSync(join(tmpdir(), "isulad-faults-"));
const file = join(folder, "calls");
let daemon: Daemon;
let before: Snapshot;
let pod: PodSandboxConfig;
let podId: string;
/** A container that must survive what happens to others. */
let other: string;

beforeAll(async () => {
  const program = join(folder, "containerd-shim-kata-v2");
  recordingShim(program, file);
  daemon = await startDaemon({
    config: {
      runtimes: { kata: { "runtime-type": "io.containerd.kata.v2", "runtime-path": program } },
    },
  });
  await daemon.removePod(await daemon.runPod(daemon.podConfig(), "kata")); // makes what lasts
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true, force: true });
});

beforeEach(async () => {
  pod = daemon.podConfig();
  before = daemon.snapshot();
  podId = await daemon.runPod(pod, "kata");
  other = await daemon.run(podId, pod, "true");
});
afterEach(async () => {
  expect((await daemon.status(other)).state).toBe(ContainerState.CONTAINER_RUNNING);
  setFaults(file, {});
  await daemon.removePod(podId);
  const leaks = await daemon.leaksSince(before);
  // A monitor that was killed had other descriptors.
  expect(leaks.filter((leak) => !leak.startsWith("descriptor"))).toEqual([]);
});

const callsOf = (id: string) =>
  recordedCalls(file).flatMap((one) => (one.id === id ? [one.call] : []));

test.each(["Create", "Start"])("an error of %s is the container's", async (method) => {
  const id = await daemon.create(podId, pod, "true");
  setFaults(file, { [method]: "error" });
  const failed = await failure(daemon.client.StartContainer({ container_id: id }));
  expect(failed.message).toContain(`${method} is broken`);
  setFaults(file, {});
  expect((await daemon.exited(id)).reason).toBe("StartError");
  await daemon.client.RemoveContainer({ container_id: id });
});

test("a container that the shim cannot delete is removed by the shim's executable", async () => {
  const id = await daemon.run(podId, pod, "true");
  setFaults(file, { Delete: "error" }, id);
  await daemon.client.StopContainer({ container_id: id, timeout: toLong(0) });
  await daemon.client.RemoveContainer({ container_id: id });
  await until("the executable was called", () => callsOf(id).includes("delete"));
});

test.each(["Create", "Start"])(
  "a container whose %s is not answered fails in time",
  async (method) => {
    const id = await daemon.create(podId, pod, "true");
    setFaults(file, { [method]: "silence" }, id);
    const start = () => failure(daemon.client.StartContainer({ container_id: id }));
    const failed = await daemon.configured({ "start-timeout": "2s" }, start);
    expect(failed.code).toBe("DEADLINE_EXCEEDED");
    setFaults(file, {});
    await daemon.client.RemoveContainer({ container_id: id });
  },
);

test("the exec of a daemon that was killed is killed, and the shim forgets it", async () => {
  const { url } = await daemon.client.Exec({ container_id: other, cmd: ["true"], stdout: true });
  const talk = await converse(url, { stdout: true });
  talk.end.catch(() => {}); // the daemon is killed
  await until("the exec runs", () => callsOf(other).includes("Exec"));
  const { exec_id } = recordedCalls(file).find(({ call }) => call === "Exec")!;
  const calls = () => recordedCalls(file).filter((one) => one["exec_id"] === exec_id);
  await until("the exec is started", () => calls().some(({ call }) => call === "Start"));
  await daemon.restart("SIGKILL");
  await until("it is deleted", () => calls().some(({ call }) => call === "Delete"));
  expect(calls().map(({ call }) => call)).toEqual(["Exec", "Wait", "Start", "Kill", "Delete"]);
});

test("a connection that is cut is opened again", async () => {
  const id = await daemon.run(podId, pod, "true");
  setFaults(file, { Update: "cut" });
  const linux = { memory_limit_in_bytes: toLong(2 ** 26) };
  await failure(daemon.client.UpdateContainerResources({ container_id: id, linux }));
  await daemon.client.UpdateContainerResources({ container_id: id, linux });
  expect((await daemon.status(id)).state).toBe(ContainerState.CONTAINER_RUNNING);
  await daemon.client.StopContainer({ container_id: id, timeout: toLong(5) });
  expect((await daemon.exited(id)).exitCode).toBe(143);
});

test("the next monitor waits for a slow shim, and kills only one container", async () => {
  const id = await daemon.run(podId, pod, "true");
  setFaults(file, { Connect: "slow" });
  for (const pid of daemon.monitors()) process.kill(pid, "SIGKILL");
  await daemon.client.StopContainer({ container_id: id, timeout: toLong(0) });
  expect((await daemon.exited(id)).exitCode).toBe(137);
  expect(callsOf(id)).toContain("Kill");
});

/** Opens connections that a stopped process does not accept, until it refuses one. */
async function fillListenQueue(path: string): Promise<Socket[]> {
  const opened: Socket[] = [];
  for (let isRefused = false; !isRefused;) {
    const socket = createConnection(path);
    opened.push(socket);
    isRefused = await new Promise((resolve) => {
      socket.once("connect", () => resolve(false));
      socket.once("error", () => resolve(true));
    });
  }
  return opened;
}

function shimOf(id: string): { path: string; pid: number } {
  const bundle = join(daemon.dir, "state/monitor/shims", id);
  return JSON.parse(readFileSync(join(bundle, "bootstrap.json"), "utf8"));
}

/** Kills the monitor, and waits until the next one has not reached a shim. */
async function nextMonitor(): Promise<void> {
  const log = new AddedText(join(daemon.dir, "state/monitor.log"));
  for (const pid of daemon.monitors()) process.kill(pid, "SIGKILL");
  const tried = () => /a shim does not answer|has ended: killing/.test(log.text);
  await until("the next monitor has tried", tried);
}

test("the next monitor waits for a shim that hangs and refuses connections", async () => {
  const shim = shimOf(other);
  process.kill(shim.pid, "SIGSTOP");
  let opened: Socket[] = [];
  try {
    opened = await fillListenQueue(shim.path);
    await nextMonitor();
  } finally {
    for (const socket of opened) socket.destroy();
    process.kill(shim.pid, "SIGCONT");
  }
  const linux = { memory_limit_in_bytes: toLong(2 ** 26) };
  const update = () => daemon.client.UpdateContainerResources({ container_id: other, linux });
  const answers = () => update().then(Boolean, () => false);
  await until("the shim is found", answers);
  await daemon.client.StopContainer({ container_id: other, timeout: toLong(5) });
  expect((await daemon.exited(other)).exitCode).toBe(143);
  other = await daemon.run(podId, pod, "true");
});

test("a stop signal is sent once the shim answers again", async () => {
  const id = await daemon.run(podId, pod, "true");
  const { pid } = shimOf(id);
  process.kill(pid, "SIGSTOP");
  let stopped: Promise<unknown>;
  try {
    await nextMonitor();
    stopped = daemon.client.StopContainer({ container_id: id, timeout: toLong(100) });
    await sleep(8_000); // longer than the monitor tries to reach it
  } finally {
    process.kill(pid, "SIGCONT");
  }
  await stopped;
  expect((await daemon.exited(id)).exitCode).toBe(143);
});

test("a container that gets no stop signal is killed after its timeout", async () => {
  const id = await daemon.run(podId, pod, "true");
  setFaults(file, { Kill: "error-once" }, id);
  await daemon.client.StopContainer({ container_id: id, timeout: toLong(2) });
  const kills = recordedCalls(file).filter((one) => one.call === "Kill" && one.id === id);
  expect(kills.map(({ signal }) => signal)).toEqual([15, 9]);
  expect((await daemon.exited(id)).exitCode).toBe(137);
});

test("a container whose shim answers no signal is killed after its timeout, with the shim", async () => {
  const own = daemon.podConfig();
  const ownPod = await daemon.runPod(own, "kata");
  const id = await daemon.run(ownPod, own, "true");
  const { pid } = shimOf(id);
  setFaults(file, { Kill: "silence" }, id);
  // Longer than a shim's limit for an answer.
  await daemon.client.StopContainer({ container_id: id, timeout: toLong(11) });
  expect((await daemon.exited(id)).exitCode).toBe(137);
  const kills = recordedCalls(file).filter((one) => one.call === "Kill" && one.id === id);
  expect(kills.map(({ signal }) => signal)).toEqual([15, 9]);
  await until("the shim has ended", () => !existsSync(`/proc/${pid}`));
  await daemon.removePod(ownPod);
});
