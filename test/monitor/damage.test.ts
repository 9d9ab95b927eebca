// Tests damage to the state folder of a running monitor: removed or garbled files cost no container, and the
// monitor keeps serving the others.
import { afterAll, afterEach, beforeAll, describe, expect, test } from "bun:test";
import { spawn, spawnSync } from "node:child_process";
import { existsSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import process from "node:process";
import { readFrames, writeFrame } from "../../src/monitor/protocol.ts";
import { runtime } from "../../src/proto/messages.js";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { isZombie } from "../../src/sys/process.ts";
import { until } from "../expect.ts";
import { type Daemon, ociRuntime, startDaemon } from "../harness.ts";
import { logText } from "../log_text.ts";

const { ContainerState, NamespaceMode } = runtime.v1;
let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
beforeAll(async () => {
  daemon = await startDaemon({ network: false });
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
});
afterAll(() => daemon?.[Symbol.asyncDispose]());
afterEach(async () => {
  const { containers } = await daemon.client.ListContainers({});
  for (const { id } of containers) await daemon.client.RemoveContainer({ container_id: id });
});

/** Writes a number every 50 ms, and ends with 7 when it is told to. */
const counting =
  "trap 'exit 7' USR1; n=0; while :; do n=$((n + 1)); echo $n; sleep 0.05 & wait $!; done";
const at = (...names: string[]) => join(daemon.dir, "state/monitor", ...names);

async function executes(id: string): Promise<boolean> {
  return daemon.exec(id, "true").then(
    () => true,
    () => false,
  );
}

async function killMonitor(): Promise<void> {
  const old = daemon.monitors();
  for (const pid of old) process.kill(pid, "SIGKILL");
  await until("there is one other monitor", () => {
    const now = daemon.monitors();
    return now.length === 1 && !old.includes(now[0]!);
  });
}

async function numbers(id: string): Promise<string[]> {
  return logText(readFileSync((await daemon.status(id)).log_path, "utf8"))
    .trimEnd()
    .split("\n");
}

/** It runs and writes on, each line once or, at a change of monitors, twice; then ends with its code. */
async function expectWhole(id: string): Promise<void> {
  expect((await daemon.status(id)).state).toBe(ContainerState.CONTAINER_RUNNING);
  const before = (await numbers(id)).length;
  await until("it writes on", async () => (await numbers(id)).length > before + 5);
  process.kill(await daemon.pidOf(id), "SIGUSR1");
  expect((await daemon.exited(id)).exitCode).toBe(7);
  const lines = [...new Set(await numbers(id))];
  expect(lines).toEqual(lines.map((_, index) => String(index + 1)));
}

/** What a monitor is to find gone. */
function removeFolder(): void {
  const pins = `for pin in ${at("pids")}/*; do umount -l "$pin"; done`;
  spawnSync("sh", ["-c", `${pins}; rm -rf ${at()}`]);
  expect(existsSync(at())).toBe(false);
}

describe("a container's folder of streams that is gone", () => {
  test("keeps no monitor from coming: that container goes on, and so do the others", async () => {
    const [one, other] = [
      await daemon.run(podId, pod, counting),
      await daemon.run(podId, pod, counting),
    ];
    const reader = await daemon.run(podId, pod, ["cat"], { stdin: true });
    for (const id of [one, reader])
      rmSync(join(daemon.dir, "state/stdio", id), { recursive: true });
    await killMonitor();
    await until("it serves", () => executes(other));
    await daemon.restart("SIGKILL");
    expect((await daemon.status(reader)).state).toBe(ContainerState.CONTAINER_RUNNING);
    await expectWhole(one);
    await expectWhole(other);
  });
});

describe("the monitor's place", () => {
  test("its socket removed: it is found again, also by a daemon that starts", async () => {
    const id = await daemon.run(podId, pod, counting);
    const before = daemon.monitors();
    await daemon.stop("SIGKILL");
    rmSync(at("socket"));
    await daemon.start();
    expect(await executes(id)).toBe(true);
    await until("only the old one is there", () => daemon.monitors().join() === before.join());
    await expectWhole(id);
  });

  test("its folder removed under it: it makes it again, and nothing is forgotten", async () => {
    const id = await daemon.run(podId, pod, counting);
    const ended = await daemon.run(podId, pod, "exit 5");
    await daemon.exited(ended);
    const before = daemon.monitors();
    const pins = existsSync(at("pids", id)) ? [`pids/${id}`] : []; // where the kernel can
    process.kill(before[0]!, "SIGSTOP"); // or it makes parts again meanwhile
    removeFolder();
    process.kill(before[0]!, "SIGCONT");
    const files = ["socket", `containers/${id}.json`, `exits/${ended}.json`, ...pins];
    await until("it is there again", () => files.every((file) => existsSync(at(file))));
    expect(daemon.monitors()).toEqual(before);
    expect(await executes(id)).toBe(true);
    await killMonitor();
    await until("the next one serves", () => executes(id));
    await expectWhole(id);
  });
});

describe("records that are lost with their monitor", () => {
  /** Pods whose containers share a pid namespace have a container of their own for it. */
  async function podWithPause(): Promise<[PodSandboxConfig, string]> {
    const config = daemon.hostPodConfig();
    config.linux!.security_context!.namespace_options!.pid = NamespaceMode.POD;
    return [config, await daemon.runPod(config)];
  }

  test("the daemon gives the next one what runs: streams, terminal, stdin, pause, exit code", async () => {
    const [shared, sharedId] = await podWithPause();
    const id = await daemon.run(podId, pod, counting);
    const inPod = await daemon.run(sharedId, shared, ["sleep", "600"]);
    const reader = await daemon.run(podId, pod, ["cat"], { stdin: true });
    const wait = "until [ $go ]; do sleep 0.1; done";
    const shell = `trap go=1 USR1; for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done; ${wait}; tty; exit 8`;
    const terminal = await daemon.run(podId, pod, shell, { tty: true });
    await daemon.logged(terminal, "1");
    for (const kind of ["containers", "exits"]) rmSync(at(kind), { recursive: true });
    await killMonitor();
    for (const one of [id, inPod, reader]) {
      await until("it serves", () => executes(one));
      expect((await daemon.status(one)).state).toBe(ContainerState.CONTAINER_RUNNING);
    }
    const { status } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: sharedId });
    expect(status!.state).toBe(runtime.v1.PodSandboxState.SANDBOX_READY);
    await expectWhole(id);
    process.kill(await daemon.pidOf(terminal), "SIGUSR1");
    const end = await daemon.exited(terminal);
    expect(end.exitCode).toBe(8);
    const log = readFileSync(end.status.log_path!, "utf8");
    expect(logText(log)).toBe("1\n2\n3\n4\n5\n6\n/dev/pts/0\n");
    await daemon.removePod(sharedId);
  });

  test("its folder removed while nobody looks: one monitor has them, and never two", async () => {
    const id = await daemon.run(podId, pod, counting);
    const ended = await daemon.run(podId, pod, "sleep 0.5; exit 6");
    const before = daemon.monitors();
    await daemon.stop("SIGKILL");
    process.kill(before[0]!, "SIGSTOP"); // or it makes its folder again
    removeFolder();
    await daemon.start();
    await until("the stopped one is killed", () => !daemon.monitors().includes(before[0]!));
    await until("it serves", () => executes(id));
    // Its code went with the monitor that had it as its child, and with the pin.
    expect((await daemon.exited(ended)).exitCode).toBeOneOf([6, 255]);
    await until("there is one monitor", () => daemon.monitors().length === 1);
    await until("it writes on", async () => (await numbers(id)).length > 10);
    expect((await daemon.status(id)).state).toBe(ContainerState.CONTAINER_RUNNING);
  });
});

test("a folder in the place of a pin: the container can be removed, as any other", async () => {
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  spawnSync("sh", [
    "-c",
    `umount -l ${at("pids", id)}; rm -f ${at("pids", id)}; mkdir -p ${at("pids", id)}/x`,
  ]);
  await killMonitor();
  await until("it serves", () => executes(id));
  await daemon.client.RemoveContainer({ container_id: id });
  expect(existsSync(at("pids", id))).toBe(false);
});

test("what the runtime has forgotten: Stop and Remove leave no process and no cgroup", async () => {
  const { cgroupParent } = daemon;
  const before = daemon.snapshot();
  const parent = cgroupParent.endsWith(".slice") ? cgroupParent : `${cgroupParent}/pod-of-kubelet`;
  const own = daemon.hostPodConfig();
  own.linux = { ...own.linux, cgroup_parent: parent };
  own.linux.security_context!.namespace_options!.pid = NamespaceMode.POD;
  const ownId = await daemon.runPod(own);
  const stopped = await daemon.run(ownId, own, ["sleep", "600"]);
  const stubborn = "trap '' TERM; sleep 600 & while :; do sleep 1; done";
  const removed = await daemon.run(ownId, own, stubborn);
  for (const id of [stopped, removed, ownId]) {
    rmSync(join(daemon.dir, "state/runtime", ociRuntime, id), { recursive: true });
  }
  await daemon.client.StopContainer({ container_id: stopped });
  await daemon.client.RemoveContainer({ container_id: removed });
  await daemon.removePod(ownId);
  expect(await daemon.leaksSince(before)).toEqual([]);
});

test("a monitor that cannot take them over: what runs is killed before it is said to have ended", async () => {
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  const pid = await daemon.pidOf(id);
  await daemon.stop("SIGKILL");
  for (const monitor of daemon.monitors()) process.kill(monitor, "SIGKILL");
  await until("there is none", () => daemon.monitors().length === 0);
  {
    await using _ = await olderMonitor();
    await daemon.start();
    const { exitCode, reason } = await daemon.exited(id);
    expect({ exitCode, reason }).toEqual({ exitCode: 255, reason: "Unknown" });
    expect(isZombie(pid) || !existsSync(`/proc/${pid}`)).toBe(true);
    await daemon.stop("SIGKILL");
  }
  await daemon.start();
});

/** One that knows of no container and no call but the first one's. */
async function olderMonitor(): Promise<AsyncDisposable> {
  const standIn = spawn("sleep", ["600"]); // who would be killed if it were silent
  const server = createServer((socket) => {
    readFrames(socket, (header) => {
      const { seq, call } = header as { seq: number; call: string };
      const pid = standIn.pid!;
      const hello = { pid, version: "0", executable: "older", running: [], exits: [] };
      const error = { code: "UNIMPLEMENTED" as const, message: `the monitor has no call ${call}` };
      if (call === "hello") writeFrame(socket, { seq, result: hello });
      else if (call === "remove") writeFrame(socket, { seq, result: {} });
      else writeFrame(socket, { seq, error });
    });
  });
  rmSync(at("socket"), { force: true });
  await new Promise<void>((resolve) => server.listen(at("socket"), resolve));
  return {
    [Symbol.asyncDispose]: async () => {
      standIn.kill("SIGKILL");
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
