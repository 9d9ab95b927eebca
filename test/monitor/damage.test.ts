// What the monitor keeps in the state folder, removed or damaged under it: no container is lost, and
// none takes the others' monitor along.
import { afterAll, afterEach, beforeAll, describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { runtime } from "../../src/proto/messages.js";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { logText } from "../log_text.ts";

const { ContainerState } = runtime.v1;
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

async function pidOf(id: string): Promise<number> {
  const { info } = await daemon.client.ContainerStatus({ container_id: id, verbose: true });
  return (JSON.parse(info["info"]!) as { pid: number }).pid;
}

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
  process.kill(await pidOf(id), "SIGUSR1");
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
    expect(daemon.monitors()).toEqual(before);
    await expectWhole(id);
  });

  test("its folder removed under it: it makes it again, and nothing is forgotten", async () => {
    const id = await daemon.run(podId, pod, counting);
    const ended = await daemon.run(podId, pod, "exit 5");
    await daemon.exited(ended);
    const before = daemon.monitors();
    const pins = existsSync(at("pids", id)) ? [`pids/${id}`] : []; // where the kernel can
    removeFolder();
    const files = ["socket", `containers/${id}.json`, `exits/${ended}.json`, ...pins];
    await until("it is there again", () => files.every((file) => existsSync(at(file))));
    expect(daemon.monitors()).toEqual(before);
    expect(await executes(id)).toBe(true);
    await killMonitor();
    await until("the next one serves", () => executes(id));
    await expectWhole(id);
  });
});
